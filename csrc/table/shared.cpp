// Tables in shared memory: what a process leaves behind for the next, and how that finds it again.
#include <algorithm>
#include <bit>
#include <vector>

#include "core/settle.hpp"
#include "cpu/thread_pool.hpp"
#include "table/collection.hpp"

namespace cpr {

namespace {

constexpr int64_t kLogSlack = 4096;           // entries more than rows: of words that changed meanwhile
constexpr uint64_t kLogStep = 1 << 16;        // entries that memory is taken for at once
constexpr size_t kKeptLog = size_t{1} << 20;  // bytes
constexpr size_t kMarkerBytes = size_t{256} << 20;
constexpr int64_t kRowsPerTask = 1 << 18;

size_t log_bytes(int64_t rows) { return static_cast<size_t>(rows + kLogSlack) * sizeof(RowLogEntry); }

}  // namespace

void Table::place_books(const Arenas& arenas) {
  region_ = arenas.region;
  books_ = arenas.books;
  book_ = static_cast<TableBook*>(books_->take(sizeof(TableBook)));
  if (ssu_.groups > 0 && spec_.track_ssu) {
    shared_deferred_ = region_->sparse_area((static_cast<size_t>(num_rows()) + (size_t{1} << 15)) * sizeof(uint32_t));
    deferred_ = reinterpret_cast<uint32_t*>(shared_deferred_.data());
  }
  for (int which = 0; which < 2; ++which) {
    log_memory_[which] = region_->sparse_area(log_bytes(num_rows()));
    logs_[which].entries = reinterpret_cast<RowLogEntry*>(log_memory_[which].data());
    logs_[which].book = &book_->logs[which];
  }
}

void Table::begin_log(uint32_t tag, uint32_t given) {
  for (RowLog& log : logs_) {
    *log.book = {};
    log.tag = tag;
    log.given = given;
    log.capacity = 0;
  }
}

void Table::reserve_log(int which, int64_t rows) {
  RowLog& log = logs_[which];
  if (log.tag == 0) return;
  const uint64_t next = __atomic_load_n(&log.book->next, __ATOMIC_RELAXED);
  const uint64_t most = static_cast<uint64_t>(num_rows() + kLogSlack);
  __atomic_store_n(&log.book->sure, std::min(next, log.capacity), __ATOMIC_RELEASE);
  if (next + static_cast<uint64_t>(rows) <= log.capacity || log.capacity == most) return;
  const uint64_t wanted = std::min(most, next + static_cast<uint64_t>(rows) + kLogStep);
  if (log_memory_[which].back(wanted * sizeof(RowLogEntry))) log.capacity = wanted;
}

void Table::end_log() {
  for (SparseArea& memory : log_memory_) memory.trim(kKeptLog);
}

void Table::check_logs(uint32_t tag) {
  if (book_->unfinished == 0) return;
  TableView v = view();
  v.parity_bit = book_->unfinished;
  for (RowLog& log : logs_) {
    const uint64_t end = std::min(log.book->next, static_cast<uint64_t>(num_rows() + kLogSlack));
    for (uint64_t i = log.book->sure; i < end; ++i) {
      RowLogEntry& entry = log.entries[i];
      if (entry.tag != tag || entry.row >= num_rows()) continue;
      if (!is_settled(v, load_word(&meta_of(v, entry.row)->word))) entry.tag = 0;
    }
  }
}

void Table::merge_logs(uint32_t tag) {
  std::vector<bool> seen(static_cast<size_t>(num_rows()));
  TrackerDelta ignored;  // the totals are counted anew
  bool lost = false;
  for (RowLog& log : logs_) {
    lost |= log.book->lost != 0;
    const uint64_t end = std::min(log.book->next, static_cast<uint64_t>(num_rows() + kLogSlack));
    for (uint64_t i = 0; i < end; ++i) {
      RowLogEntry& entry = log.entries[i];
      if (entry.tag != tag || entry.row >= num_rows()) continue;
      if (!seen[entry.row]) merge_word(entry.row, entry.word, entry.drift, &ignored);
      seen[entry.row] = true;
      entry.tag = 0;
    }
    *log.book = {};
  }
  if (lost) mark_all_dirty();
}

void Table::recount(int threads) {
  const TableView v = view();
  const int64_t tasks = (num_rows() + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<TrackerDelta> found(static_cast<size_t>(threads));
  cpu::parallel_for(tasks, threads, [&](int64_t task, int thread) {
    TrackerDelta& delta = found[static_cast<size_t>(thread)];
    for (int64_t row = task * kRowsPerTask; row < std::min(num_rows(), (task + 1) * kRowsPerTask); ++row) {
      const uint32_t word = load_word(&meta_of(v, row)->word);
      delta.dirty += (word & kDirtyBit) != 0 ? 1 : 0;
      ++delta.counts[count_bucket(word & kCountMask)];
      if (v.track_drift) ++delta.drifts[drift_bucket(drift_of(v, row, word))];
    }
  });
  num_dirty_.store(0);
  slots_used_.store(num_slots() - std::count(ssu_.slots, ssu_.slots + num_slots(), kEmptySlot));
  for (auto& bucket : counts_) bucket.store(0);
  for (auto& bucket : drifts_) bucket.store(0);
  if (!spec_.track_mfu) counts_[0].store(num_rows());
  if (!spec_.track_drift) drifts_[0].store(num_rows());
  for (const TrackerDelta& delta : found) add(delta);
}

Arenas Collection::place(size_t weight_bytes, size_t state_bytes, size_t tracker_bytes,
                         const std::shared_ptr<Region>& region) {
  if (region == nullptr) {
    return {std::make_shared<Arena>(weight_bytes), std::make_shared<Arena>(state_bytes),
            std::make_shared<Arena>(tracker_bytes), nullptr, nullptr};
  }
  const auto shared = [&](size_t bytes) { return std::make_shared<Arena>(region->area(bytes)); };
  const size_t books =
      Arena::aligned(sizeof(CollectionBook)) + features_of_table_.size() * Arena::aligned(sizeof(TableBook));
  Arenas arenas{shared(weight_bytes), shared(state_bytes), shared(tracker_bytes), region, shared(books)};
  region_ = region;
  book_ = static_cast<CollectionBook*>(arenas.books->take(sizeof(CollectionBook)));
  marker_ = region->sparse_area(kMarkerBytes);
  return arenas;
}

// Of a process that died: what must be read before the first update writes over it.
void Collection::find_left() {
  const bool current = book_->marker_sequence == region_->ended();
  doubtful_.resize(tables_.size());
  all_doubtful_ = current && book_->marker_lost != 0;
  const uint32_t* numbers = reinterpret_cast<const uint32_t*>(marker_.data());
  const uint64_t size = current ? std::min(book_->marker_size, uint64_t{kMarkerBytes / sizeof(uint32_t)}) : 0;
  for (uint64_t at = 0; at + 2 <= size;) {
    const uint64_t index = numbers[at];
    const uint64_t n = numbers[at + 1];
    at += 2;
    if (index >= tables_.size() || at + n > size) break;
    for (uint64_t i = at; i < at + n; ++i) doubtful_[index].push_back(numbers[i]);
    at += n;
  }
  std::vector<Snapshot::Part> parts;
  bool unfinished = false;
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (book_->log_tag != 0) tables_[t]->check_logs(book_->log_tag);
    std::vector<int64_t>& rows = doubtful_[t];
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    while (!rows.empty() && rows.back() >= tables_[t]->num_rows()) rows.pop_back();
    for (int64_t& row : rows) row += tables_[t]->spec().row_offset;
    Snapshot::Part part;
    part.table = tables_[t].get();
    const uint32_t bits = tables_[t]->book().unfinished;
    if (bits != 0) part.rule.kind = bits == kBaseParityBit ? Select::kAll : Select::kDirty;
    unfinished |= bits != 0;
    parts.push_back(part);
  }
  if (unfinished) active_ = Snapshot::resume(std::move(parts), step_, &mutex_, staging_);
  left_.store(true);
}

void Collection::reattach() {
  check_owner("reattach");
  std::shared_ptr<Snapshot> resumed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!left_.load()) return;
    resumed = active_;
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (all_doubtful_) tables_[t]->mark_all_dirty();
    }
  }
  for (size_t t = 0; t < tables_.size(); ++t) {
    mark_dirty(static_cast<int64_t>(t), doubtful_[t].data(), static_cast<int64_t>(doubtful_[t].size()));
  }
  if (resumed != nullptr) resumed->start_walk();
}

// Brings what a process that died left to the tables' words: before the first call that looks at them as a whole.
void Collection::settle_left() {
  if (!left_.load()) return;
  std::shared_ptr<Snapshot> resumed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resumed = active_;
  }
  if (resumed != nullptr) resumed->abort();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!left_.load()) return;
  active_ = nullptr;
  for (const auto& table : tables_) {
    table->enter_deferred();
    if (book_->log_tag != 0) table->merge_logs(book_->log_tag);
    table->recount(kMaxThreads);
  }
  __atomic_store_n(&book_->log_tag, 0, __ATOMIC_RELEASE);
  left_.store(false);
}

std::unique_lock<std::mutex> Collection::lock_idle(const char* call) {
  check_owner(call);
  settle_left();
  std::unique_lock<std::mutex> lock(mutex_);
  check_idle(call);
  return lock;
}

std::unique_lock<std::mutex> Collection::lock_settled() {
  settle_left();
  return std::unique_lock<std::mutex>(mutex_);
}

// Notes the rows of one table that are about to be written. `keys`: rows in their upper halves.
void Collection::note_rows(int64_t index, const std::vector<cpu::KeySpan>& spans) {
  if (region_ == nullptr) return;
  if (book_->marker_sequence != region_->ended()) {
    __atomic_store_n(&book_->marker_size, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&book_->marker_lost, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&book_->marker_sequence, region_->ended(), __ATOMIC_RELEASE);
  }
  uint64_t n = 0;
  for (const cpu::KeySpan& span : spans) n += static_cast<uint64_t>(span.size);
  if (n == 0) return;
  const uint64_t size = book_->marker_size;
  if (!marker_.back((size + 2 + n) * sizeof(uint32_t))) {
    __atomic_store_n(&book_->marker_lost, 1, __ATOMIC_RELEASE);
    return;
  }
  uint32_t* to = reinterpret_cast<uint32_t*>(marker_.data()) + size;
  *to++ = static_cast<uint32_t>(index);
  *to++ = static_cast<uint32_t>(n);
  for (const cpu::KeySpan& span : spans) {
    for (int64_t i = 0; i < span.size; ++i) *to++ = static_cast<uint32_t>(span.keys[i] >> 32);
  }
  __atomic_store_n(&book_->marker_size, size + 2 + n, __ATOMIC_RELEASE);
}

void Collection::begin_logs(const std::vector<Snapshot::Part>& parts, bool clears_dirty) {
  if (region_ == nullptr) return;
  const uint32_t tag = std::max<uint32_t>(book_->last_tag + 1, 1);
  const uint32_t given = kCountMask | kListedBit | (clears_dirty ? kDirtyBit : 0);
  for (const Snapshot::Part& part : parts) part.table->begin_log(tag, given);
  book_->last_tag = tag;
  __atomic_store_n(&book_->log_tag, tag, __ATOMIC_RELEASE);
}

void Collection::end_logs() {
  if (region_ == nullptr) return;
  __atomic_store_n(&book_->log_tag, 0, __ATOMIC_RELEASE);
  for (const auto& table : tables_) table->end_log();
}

}  // namespace cpr
