// The snapshot's background walk: visits every row's word once, copies what is pending and was not yet touched.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "core/settle.hpp"
#include "table/snapshot.hpp"

namespace cpr {

namespace {

constexpr int kNice = 10;  // never idle priority: a walk that holds a chunk must get on
constexpr int64_t kMaxChunkBytes = int64_t{16} << 20;
constexpr int64_t kMinChunkRows = 256;
constexpr int64_t kRowsPerFlush = 1 << 20;
constexpr int64_t kWalkBlock = 32;  // rows

typedef uint64_t Words __attribute__((vector_size(16), aligned(2), may_alias));

// Reads memory that the update pass may write at the same time. What is read counts only if the row's word is then
// found unchanged (a sequence lock's read side), so the race is harmless and kept from ThreadSanitizer.
__attribute__((no_sanitize("thread"), noinline)) void racy_copy(const void* source, void* target, int64_t bytes) {
  const char* from = static_cast<const char*>(source);
  char* to = static_cast<char*>(target);
  int64_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    *reinterpret_cast<Words*>(to + at) = *reinterpret_cast<const Words*>(from + at);
  }
  for (; at < bytes; at += 2) {
    *reinterpret_cast<uint16_t*>(to + at) =
        __atomic_load_n(reinterpret_cast<const uint16_t*>(from + at), __ATOMIC_RELAXED);
  }
}

// The drift that goes with `word`, if that is still the row's.
float racy_drift(const TableView& view, int64_t row, uint32_t word) {
  if (!view.track_drift || (word & kVoidDriftBit) != 0) return 0.0F;
  float drift = 0.0F;
  racy_copy(drift_cell(view, row), &drift, sizeof drift);
  return drift;
}

// A row that the update pass may write meanwhile, into slot `slot`.
void racy_stage(const TableView& view, const Snapshot::WalkedRow& walked, const StagingView& to, int64_t slot) {
  const int64_t row = walked.row;
  const int64_t bytes = weight_bytes(view.format);
  racy_copy(weight_bytes_of(view, row), to.weight + slot * bytes, bytes);
  float* state = to.state + slot * view.format.state_size;
  for (int a = 0; a < view.num_arrays; ++a) {
    const int64_t columns = view.arrays[a].columns;
    racy_copy(view.arrays[a].data + row * columns, state, columns * static_cast<int64_t>(sizeof(float)));
    state += columns;
  }
  if (view.state_of_row) racy_copy(&meta_of(view, row)->state, state, sizeof(float));
  if (view.track_drift) to.drift[slot] = walked.drift;
  to.rows[slot] = row + view.row_offset;
  to.words[slot] = true_word(view, row, walked.word);
}

void move_slot(const RowFormat& format, const StagingView& v, int64_t from, int64_t to) {
  const int64_t bytes = weight_bytes(format);
  std::copy_n(v.weight + from * bytes, bytes, v.weight + to * bytes);
  std::copy_n(v.state + from * format.state_size, format.state_size, v.state + to * format.state_size);
  if (format.drift) v.drift[to] = v.drift[from];
  v.rows[to] = v.rows[from];
  v.words[to] = v.words[from];
}

}  // namespace

void Snapshot::walk(bool blocking) {
  if (!blocking) setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].taken) walk_table(static_cast<int>(t), blocking);
  }
  swept_.store(true, std::memory_order_release);
  queue_changed_.notify_all();
}

void Snapshot::walk_table(int index, bool blocking) {
  Table& table = *tables_[static_cast<size_t>(index)].part.table;
  TableView view = table.view();
  view.parity_bit = parity_bit_of(tables_[static_cast<size_t>(index)].part.rule.kind);
  StagingPtr buffer;
  TrackerDelta delta;
  for (int64_t row = 0; row < table.num_rows(); row += kRowsPerFlush) {
    walk_rows(index, view, row, std::min(row + kRowsPerFlush, table.num_rows()), &buffer, blocking, &delta);
    table.add(delta);
    delta = {};
  }
  seal(std::move(buffer));
}

// Settles rows [begin, end) unless the update pass was faster. A block is copied first and then validated row by row: a
// compare-exchange waits for the stores before it, and so only once a block for those of the copies.
void Snapshot::walk_rows(int index, const TableView& view, int64_t begin, int64_t end, StagingPtr* buffer,
                         bool blocking, TrackerDelta* delta) {
  WalkedRow rows[kWalkBlock];
  for (int64_t row = begin; row < end;) {
    const SelectRule rule = current_rule(tables_[static_cast<size_t>(index)]);
    const int64_t free = *buffer == nullptr ? 0 : (*buffer)->capacity() - (*buffer)->size();
    bool full = false;
    int64_t n = 0;
    int64_t copied = 0;
    for (; row < end && n < kWalkBlock; ++row) {
      const uint32_t word = load_word(&meta_of(view, row)->word);
      if (is_settled(view, word) || (view.parity_bit == kParityBit && is_clean(view, word))) continue;
      const float drift = racy_drift(view, row, word);
      const bool taken = is_selected(view, rule, row, word, drift);
      full = taken && copied == free;
      if (full) break;
      rows[n++] = {row, word, drift, taken};
      if (taken) racy_stage(view, rows[n - 1], (*buffer)->view(), (*buffer)->size() + copied++);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    n = validate(view, rule, rows, n, buffer->get(), delta);
    for (int64_t i = 0; i < n; ++i) walk_rows(index, view, rows[i].row, rows[i].row + 1, buffer, blocking, delta);
    if (full) {
      if (*buffer != nullptr) seal(std::move(*buffer));
      *buffer = walk_buffer(index, blocking);
    }
  }
}

// Settles rows that were copied behind the end of `buffer` and closes the gaps of those that changed meanwhile; these
// are left in `rows`, and their number is returned.
int64_t Snapshot::validate(const TableView& view, const SelectRule& rule, WalkedRow* rows, int64_t n,
                           StagingBuffer* buffer, TrackerDelta* delta) {
  int64_t slot = buffer == nullptr ? 0 : buffer->size();
  int64_t kept = slot;
  int64_t changed = 0;
  for (int64_t i = 0; i < n; ++i) {
    WalkedRow& walked = rows[i];
    const uint32_t next = settled_word(rule, view.parity_bit, walked.word, walked.taken);
    uint32_t word = walked.word;
    const bool settled = __atomic_compare_exchange_n(&meta_of(view, walked.row)->word, &word, next, false,
                                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (settled && walked.taken) {
      if (kept != slot) move_slot(buffer->format(), buffer->view(), slot, kept);
      ++kept;
      if ((walked.word & ~kParityBits) != 0) account(view, walked.word, next, delta);
      if (view.track_drift) account_drift(walked.drift, 0.0F, delta);
    }
    slot += walked.taken ? 1 : 0;
    if (!settled) rows[changed++] = walked;
  }
  if (buffer != nullptr) buffer->set_size(kept);
  return changed;
}

// nullptr if the snapshot was given up meanwhile; current_rule then selects nothing.
StagingPtr Snapshot::walk_buffer(int index, bool blocking) {
  const Part& part = tables_[static_cast<size_t>(index)].part;
  const RowFormat& format = part.table->format();
  const int64_t chunk_bytes = std::min(kMaxChunkBytes, std::max<int64_t>(pool_->max_bytes() / 4, 1));
  const int64_t fitting = std::max(kMinChunkRows, chunk_bytes / StagingBuffer::bytes_for(format, 1024) * 1024);
  const int64_t rows = std::clamp<int64_t>(part.expected_rows + 1, 1, fitting);
  try {
    return pool_->acquire(
        index, format, rows, blocking ? INT64_MAX : pool_->max_bytes(), -1.0,
        [this] { return discard_.load(std::memory_order_acquire); }, [this] { return reader_starves(); });
  } catch (const std::bad_alloc&) {
    fail("no memory for staging");
    return nullptr;
  }
}

}  // namespace cpr
