#include "table/table.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/kernels.hpp"
#include "cpu/thread_pool.hpp"

namespace cpr {

namespace {

constexpr int64_t kRowsPerTask = 1 << 15;
constexpr int64_t kMinSlotsForGroups = 4096;
constexpr int64_t kMinDeferred = 1 << 10;
constexpr int64_t kMaxDeferred = 1 << 14;  // bounds what a snapshot's begin has to enter

SsuView make_ssu(const TableSpec& spec, uint64_t key) {
  SsuView ssu;
  ssu.key = hash2(key, 0x55U);
  ssu.groups = kSsuGroups;
  if (!spec.track_ssu) return ssu;
  const int64_t capacity =
      std::max<int64_t>(1, static_cast<int64_t>(spec.ssu_fraction * static_cast<double>(spec.num_embeddings)));
  if (capacity < kMinSlotsForGroups) ssu.groups = 1;
  ssu.slots_per_group = static_cast<uint32_t>(capacity / ssu.groups);
  return ssu;
}

}  // namespace

size_t Table::weight_bytes(const TableSpec& spec) {
  return static_cast<size_t>(spec.num_embeddings * spec.embedding_dim) * sizeof(float);
}

size_t Table::tracker_bytes(const TableSpec& spec) {
  const SsuView ssu = make_ssu(spec, 0);
  return Arena::aligned(static_cast<size_t>(spec.num_embeddings) * sizeof(RowMeta)) +
         static_cast<size_t>(ssu.groups) * ssu.slots_per_group * sizeof(uint32_t);
}

Table::Table(TableSpec spec, const OptimizerSpec& optimizer, uint64_t seed, const std::shared_ptr<Arena>& weights,
             const std::shared_ptr<Arena>& trackers)
    : spec_(std::move(spec)),
      has_state_(optimizer.kind == Optimizer::kRowWiseAdagrad),
      initial_state_(has_state_ ? optimizer.initial_state : 0.0F),
      key_(table_key(seed, spec_.name)),
      weight_(static_cast<float*>(weights->take(weight_bytes(spec_)))),
      weight_owner_(weights),
      trackers_(trackers),
      meta_(static_cast<RowMeta*>(trackers->take(static_cast<size_t>(meta_bytes())))),
      ssu_(make_ssu(spec_, key_)) {
  if (spec_.track_ssu) {
    const size_t slots = static_cast<size_t>(ssu_.groups) * ssu_.slots_per_group;
    ssu_.slots = static_cast<uint32_t*>(trackers->take(slots * sizeof(uint32_t)));
    std::fill_n(ssu_.slots, slots, kEmptySlot);
  }
  // The first limits differ, so that tables of one size don't all enter in the same step.
  defer_limit_ = defer_limit() * (1 + key_ % 8) / 8;
  histogram_[0].store(num_rows(), std::memory_order_relaxed);
}

TableView Table::view() const {
  TableView v;
  v.weight = weight_;
  v.meta = meta_;
  v.num_rows = num_rows();
  v.dim = dim();
  v.row_offset = spec_.row_offset;
  v.mean = spec_.pooling == Pooling::kMean;
  v.track_dirty = spec_.track_dirty;
  v.track_mfu = spec_.track_mfu;
  v.parity = parity_;
  v.ssu = ssu_;
  return v;
}

void Table::bind_weight(float* weight, std::shared_ptr<void> owner) {
  weight_ = weight;
  weight_owner_ = std::move(owner);
}

void Table::initialise(int64_t begin, int64_t end) {
  const TableView v = view();
  const int64_t tasks = (end - begin + kRowsPerTask - 1) / kRowsPerTask;
  const int threads = static_cast<int>(std::clamp<int64_t>(tasks, 1, 8));
  cpu::parallel_for(tasks, threads, [&](int64_t task, int) {
    const int64_t first = begin + task * kRowsPerTask;
    cpu::kernels().initialise(v, first, std::min(end, first + kRowsPerTask), key_, spec_.init_min, spec_.init_max,
                              initial_state_);
  });
}

void Table::set_word(int64_t row, uint32_t word, TrackerDelta* delta) {
  const uint32_t before = load_word(&meta_[row].word);
  const uint32_t after = (before & kParityBit) | (word & ~kParityBit);
  if ((after & kListedBit) != 0 && ssu_.slots != nullptr) {
    uint32_t* slot = ssu_slot_of(ssu_, row);
    delta->slots_used += *slot == kEmptySlot ? 1 : 0;
    if (*slot == kEmptySlot || (load_word(&meta_[*slot].word) & kListedBit) == 0) *slot = static_cast<uint32_t>(row);
  }
  if (after == before) return;
  store_word(&meta_[row].word, after);
  account(view(), before, after, delta);
}

uint32_t Table::word(int64_t row) const {
  const uint32_t word = load_word(&meta_[row].word) & ~kParityBit;
  return ssu_.slots == nullptr || is_listed(ssu_, row, word) ? word : word & ~kListedBit;
}

void Table::merge_word(int64_t row, uint32_t taken, TrackerDelta* delta) {
  uint32_t word = add_count(this->word(row), taken & kCountMask);
  word |= taken & (kDirtyBit | kListedBit);
  set_word(row, word, delta);
}

void Table::mark_all_dirty() {
  if (!spec_.track_dirty) return;
  for (int64_t row = 0; row < num_rows(); ++row) {
    uint32_t* cell = &meta_[row].word;
    store_word(cell, load_word(cell) | kDirtyBit);
  }
  num_dirty_.store(num_rows(), std::memory_order_relaxed);
}

void Table::add(const TrackerDelta& delta) {
  if (delta.dirty != 0) num_dirty_.fetch_add(delta.dirty, std::memory_order_relaxed);
  if (delta.slots_used != 0) slots_used_.fetch_add(delta.slots_used, std::memory_order_relaxed);
  for (size_t b = 0; b < kCountBuckets; ++b) {
    const int32_t change = delta.entered[b] - delta.left[b];
    if (change != 0) histogram_[b].fetch_add(change, std::memory_order_relaxed);
  }
}

size_t Table::defer_limit() const { return static_cast<size_t>(std::clamp(num_slots(), kMinDeferred, kMaxDeferred)); }

void Table::reserve_deferred(int64_t n) {
  if (ssu_.slots != nullptr) deferred_.reserve(deferred_.size() + static_cast<size_t>(n));
}

void Table::defer_sampled(const uint32_t* rows, int64_t n) {
  deferred_.insert(deferred_.end(), rows, rows + n);
  if (deferred_.size() < defer_limit_) return;
  enter_deferred();
  defer_limit_ = defer_limit();
}

void Table::enter_deferred() {
  if (deferred_.empty()) return;
  TrackerDelta delta;
  cpu::kernels().enter(view(), deferred_.data(), static_cast<int64_t>(deferred_.size()), &delta);
  deferred_.clear();
  add(delta);
}

std::vector<int64_t> Table::histogram() const {
  std::vector<int64_t> counts;
  counts.reserve(kCountBuckets);
  for (const auto& bucket : histogram_) counts.push_back(bucket.load(std::memory_order_relaxed));
  return counts;
}

SelectRule Table::most_used(int64_t rows, uint64_t sequence, int64_t* expected) const {
  SelectRule rule;
  rule.kind = Select::kMostUsed;
  rule.key = hash2(key_ + 1, sequence);
  int64_t above = 0;
  for (int b = kCountBuckets - 1; b > 0; --b) {
    const int64_t inside = histogram_[static_cast<size_t>(b)].load(std::memory_order_relaxed);
    if (above + inside > rows) {
      const double fraction = static_cast<double>(rows - above) / static_cast<double>(inside);
      rule.bucket = b;
      rule.boundary = static_cast<uint64_t>(std::floor(fraction * 0x1p32));
      *expected = rows;
      return rule;
    }
    above += inside;
  }
  *expected = above;
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
