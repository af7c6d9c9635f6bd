#include "table/table.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/errors.hpp"
#include "cpu/kernels.hpp"
#include "cpu/thread_pool.hpp"
#include "table/layout.hpp"

namespace cpr {

namespace {

constexpr int64_t kRowsPerTask = 1 << 15;
constexpr int64_t kInitialiseThreads = 8;
constexpr int64_t kMinDeferred = 1 << 10;
constexpr int64_t kMaxDeferred = 1 << 14;  // bounds what a snapshot's begin has to enter

template <size_t kBuckets>
std::vector<int64_t> load_all(const std::array<std::atomic<int64_t>, kBuckets>& buckets) {
  std::vector<int64_t> counts;
  counts.reserve(kBuckets);
  for (const auto& bucket : buckets) counts.push_back(bucket.load(std::memory_order_relaxed));
  return counts;
}

template <size_t kBuckets>
void add_changes(const int32_t (&changes)[kBuckets], std::array<std::atomic<int64_t>, kBuckets>* buckets) {
  for (size_t b = 0; b < kBuckets; ++b) {
    if (changes[b] != 0) (*buckets)[b].fetch_add(changes[b], std::memory_order_relaxed);
  }
}

}  // namespace

size_t Table::weight_bytes(const TableSpec& spec) {
  if (spec.external) return 0;
  return static_cast<size_t>(spec.num_embeddings * spec.embedding_dim * item_size(spec.dtype));
}

size_t Table::state_bytes(const TableSpec& spec, Optimizer optimizer) {
  const int arrays = state_layout(optimizer).arrays;
  return static_cast<size_t>(arrays) *
         Arena::aligned(static_cast<size_t>(spec.num_embeddings * spec.embedding_dim) * sizeof(float));
}

size_t Table::tracker_bytes(const TableSpec& spec) {
  const SsuView ssu = make_ssu(spec, 0);
  return Arena::aligned(static_cast<size_t>(spec.num_embeddings) << meta_shift(spec)) +
         static_cast<size_t>(ssu.groups) * ssu.slots_per_group * sizeof(uint32_t);
}

Table::Table(TableSpec spec, const OptimizerSpec& optimizer, uint64_t seed, const Arenas& arenas)
    : spec_(std::move(spec)),
      format_(make_format(spec_, state_layout(optimizer.kind))),
      layout_(state_layout(optimizer.kind)),
      initial_state_(optimizer.initial_state),
      key_(table_key(seed, spec_.name)),
      weight_(arenas.weights->take(weight_bytes(spec_))),
      weight_owner_(arenas.weights),
      state_owner_(arenas.states),
      trackers_(arenas.trackers),
      meta_(static_cast<char*>(arenas.trackers->take(static_cast<size_t>(num_rows()) << meta_shift(spec_)))),
      ssu_(make_ssu(spec_, key_)) {
  for (int a = 0; a < layout_.arrays; ++a) {
    const size_t bytes = static_cast<size_t>(num_rows() * dim()) * sizeof(float);
    arrays_.push_back({static_cast<float*>(arenas.states->take(bytes)), dim()});
  }
  if (spec_.external) weight_ = nullptr;
  if (arenas.region != nullptr) place_books(arenas);
  const bool attached = arenas.region != nullptr && arenas.region->attached();
  if (spec_.track_ssu) {
    const size_t slots = static_cast<size_t>(ssu_.groups) * ssu_.slots_per_group;
    ssu_.slots = static_cast<uint32_t*>(arenas.trackers->take(slots * sizeof(uint32_t)));
    if (!attached) std::fill_n(ssu_.slots, slots, kEmptySlot);
  }
  // The first limits differ, so that tables of one size don't all enter in the same step.
  defer_limit_ = defer_limit() * (1 + key_ % 8) / 8;
  if (spec_.track_drift && !attached) {
    const TableView v = view();
    for (int64_t row = 0; row < num_rows(); ++row) meta_of(v, row)->word = kVoidDriftBit;
  }
  counts_[0].store(num_rows(), std::memory_order_relaxed);
  drifts_[0].store(num_rows(), std::memory_order_relaxed);
}

TableView Table::view() const {
  TableView v;
  v.weight = weight_;
  v.meta = meta_;
  v.meta_shift = meta_shift(spec_);
  for (const StateArray& array : arrays_) v.arrays[v.num_arrays++] = array;
  v.format = format_;
  v.num_rows = num_rows();
  v.dim = dim();
  v.row_offset = spec_.row_offset;
  v.pooling = spec_.pooling;
  v.state_of_row = layout_.of_row > 0;
  v.track_dirty = spec_.track_dirty;
  v.track_mfu = spec_.track_mfu;
  v.track_drift = spec_.track_drift;
  v.parity = book_->parity;
  v.ssu = ssu_;
  return v;
}

void Table::bind_weight(void* weight, std::shared_ptr<void> owner) {
  weight_ = weight;
  weight_owner_ = std::move(owner);
}

void Table::bind_state(const std::vector<StateArray>& arrays, std::shared_ptr<void> owner) {
  arrays_ = arrays;
  state_owner_ = std::move(owner);
  format_.state_size = layout_.of_row;
  for (const StateArray& array : arrays) format_.state_size += array.columns;
}

int64_t Table::state_bytes() const { return layout_.arrays * num_rows() * dim() * static_cast<int64_t>(sizeof(float)); }

void Table::initialise(int64_t begin, int64_t end) {
  if (spec_.external) return;
  const TableView v = view();
  const int64_t tasks = (end - begin + kRowsPerTask - 1) / kRowsPerTask;
  const int threads = static_cast<int>(std::clamp<int64_t>(tasks, 1, kInitialiseThreads));
  std::vector<float> scratch(static_cast<size_t>(threads * dim()));
  cpu::parallel_for(tasks, threads, [&](int64_t task, int thread) {
    const int64_t first = begin + task * kRowsPerTask;
    cpu::kernels().initialise(v, first, std::min(end, first + kRowsPerTask), key_, spec_.init_min, spec_.init_max,
                              initial_state_, scratch.data() + thread * dim());
  });
}

float Table::drift(int64_t row) const {
  const TableView v = view();
  return spec_.track_drift ? drift_of(v, row, load_word(&meta_of(v, row)->word)) : 0.0F;
}

void Table::set_drift(int64_t row, float drift, TrackerDelta* delta) {
  if (!spec_.track_drift) return;
  const TableView v = view();
  account_drift(this->drift(row), drift, delta);
  *drift_cell(v, row) = drift;
  uint32_t* cell = &meta_of(v, row)->word;
  const uint32_t rest = with_parity(v, load_word(cell)) & ~kVoidDriftBit;
  store_word(cell, drift > 0.0F ? rest : rest | kVoidDriftBit);
}

void Table::set_word(int64_t row, uint32_t word, float drift, TrackerDelta* delta) {
  set_drift(row, drift, delta);
  const TableView v = view();
  uint32_t* cell = &meta_of(v, row)->word;
  const uint32_t before = load_word(cell);
  const uint32_t kept = kParityBits | kVoidDriftBit;
  const uint32_t after = with_parity(v, (before & kept) | (word & ~kept));
  if ((after & kListedBit) != 0 && ssu_.slots != nullptr) {
    uint32_t* slot = ssu_slot_of(ssu_, row);
    delta->slots_used += *slot == kEmptySlot ? 1 : 0;
    if (*slot == kEmptySlot || (load_word(&meta_of(v, *slot)->word) & kListedBit) == 0) {
      *slot = static_cast<uint32_t>(row);
    }
  }
  if (after == before) return;
  store_word(cell, after);
  account(v, before, after, delta);
}

uint32_t Table::word(int64_t row) const {
  const uint32_t word = load_word(&meta_of(view(), row)->word) & ~(kParityBits | kVoidDriftBit);
  return ssu_.slots == nullptr || is_listed(ssu_, row, word) ? word : word & ~kListedBit;
}

void Table::merge_word(int64_t row, uint32_t taken, float drift, TrackerDelta* delta) {
  uint32_t word = add_count(this->word(row), taken & kCountMask);
  word |= taken & (kDirtyBit | kListedBit);
  set_word(row, word, add_drift(this->drift(row), drift), delta);
}

void Table::mark_all_dirty() {
  if (!spec_.track_dirty) return;
  const TableView v = view();
  for (int64_t row = 0; row < num_rows(); ++row) {
    uint32_t* cell = &meta_of(v, row)->word;
    store_word(cell, with_parity(v, load_word(cell)) | kDirtyBit);
  }
  num_dirty_.store(num_rows(), std::memory_order_relaxed);
}

void Table::add(const TrackerDelta& delta) {
  if (delta.dirty != 0) num_dirty_.fetch_add(delta.dirty, std::memory_order_relaxed);
  if (delta.slots_used != 0) slots_used_.fetch_add(delta.slots_used, std::memory_order_relaxed);
  if (spec_.track_mfu) add_changes(delta.counts, &counts_);
  if (spec_.track_drift) add_changes(delta.drifts, &drifts_);
}

size_t Table::defer_limit() const { return static_cast<size_t>(std::clamp(num_slots(), kMinDeferred, kMaxDeferred)); }

void Table::reserve_deferred(int64_t n) {
  if (ssu_.slots == nullptr) return;
  const size_t size = book_->deferred + static_cast<size_t>(std::min(n, num_rows()));
  if (shared()) {
    if (shared_deferred_.back(size * sizeof(uint32_t))) return;
    throw IoError(ENOSPC, "update: no space for the sampled rows of table '" + spec_.name + "'", region_->name());
  }
  if (size > deferred_own_.size()) deferred_own_.resize(std::max(size, 2 * deferred_own_.size()));
  deferred_ = deferred_own_.data();
}

void Table::defer_sampled(const uint32_t* rows, int64_t n) {
  std::copy_n(rows, n, deferred_ + book_->deferred);
  __atomic_store_n(&book_->deferred, book_->deferred + static_cast<uint64_t>(n), __ATOMIC_RELEASE);
  if (book_->deferred < defer_limit_) return;
  enter_deferred();
  defer_limit_ = defer_limit();
}

void Table::enter_deferred() {
  if (book_->deferred == 0) return;
  TrackerDelta delta;
  cpu::kernels().enter(view(), deferred_, static_cast<int64_t>(book_->deferred), &delta);
  __atomic_store_n(&book_->deferred, 0, __ATOMIC_RELEASE);
  add(delta);
}

std::vector<int64_t> Table::histogram() const { return load_all(counts_); }

std::vector<int64_t> Table::drift_histogram() const { return load_all(drifts_); }

SelectRule Table::highest(Select kind, int64_t rows, uint64_t sequence, int64_t* expected) const {
  const std::vector<int64_t> buckets = kind == Select::kMostDrifted ? drift_histogram() : histogram();
  SelectRule rule;
  rule.kind = kind;
  rule.key = hash2(key_ + 1, sequence);
  *expected = choose_highest(buckets.data(), static_cast<int>(buckets.size()), rows, &rule);
  return rule;
}

std::vector<int64_t> Table::listed_rows() const {
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < num_slots(); ++s) {
    const int64_t row = ssu_.slots[s];
    if (ssu_.slots[s] != kEmptySlot && (word(row) & kListedBit) != 0) rows.push_back(row + spec_.row_offset);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace cpr
