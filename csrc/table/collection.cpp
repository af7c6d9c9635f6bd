#include "table/collection.hpp"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"
#include "core/settle.hpp"

namespace cpr {

Collection::Collection(std::vector<TableSpec> tables, std::vector<int64_t> features, OptimizerSpec optimizer,
                       uint64_t seed, int64_t max_staging_bytes)
    : features_(std::move(features)),
      features_of_table_(tables.size()),
      optimizer_(optimizer),
      sample_key_(hash2(seed, 0x53U)),
      staging_(std::make_shared<StagingPool>(max_staging_bytes)),
      workspaces_(kMaxThreads),
      owner_(getpid()) {
  size_t weight_bytes = 0;
  size_t tracker_bytes = 0;
  for (const TableSpec& spec : tables) {
    weight_bytes += Arena::aligned(Table::weight_bytes(spec));
    tracker_bytes += Arena::aligned(Table::tracker_bytes(spec));
  }
  const auto weights = std::make_shared<Arena>(weight_bytes);
  const auto trackers = std::make_shared<Arena>(tracker_bytes);
  bool any_ssu = false;
  for (TableSpec& spec : tables) {
    if (spec.track_ssu) {
      const int period = std::countr_zero(static_cast<uint64_t>(spec.ssu_period));
      if (any_ssu && period != log2_period_) {
        throw std::invalid_argument("ssu_period: expected one period for all tables of a collection, got " +
                                    std::to_string(int64_t{1} << log2_period_) + " and " +
                                    std::to_string(spec.ssu_period));
      }
      any_ssu = true;
      log2_period_ = period;
    }
    tables_.push_back(std::make_unique<Table>(std::move(spec), optimizer, seed, weights, trackers));
  }
  for (size_t f = 0; f < features_.size(); ++f) {
    features_of_table_.at(static_cast<size_t>(features_[f])).push_back(static_cast<int64_t>(f));
    feature_column_.push_back(output_dim_);
    output_dim_ += table(features_[f]).dim();
  }
  for (const auto& table : tables_) table->initialise(0, table->num_rows());
}

Collection::~Collection() {
  if (getpid() == owner_) {
    close();
  } else if (active_ != nullptr) {
    // See Snapshot::owned_by_this_process.
    new std::shared_ptr<Snapshot>(std::move(active_));
  }
}

void Collection::close() {
  check_owner("close");
  std::shared_ptr<Snapshot> snapshot;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    snapshot = std::move(active_);
    active_ = nullptr;
  }
  if (snapshot != nullptr) snapshot->abort();
}

void Collection::check_owner(const char* call) const {
  if (getpid() != owner_) {
    throw ForkedProcessError(std::string(call) + ": expected process " + std::to_string(owner_) +
                             ", which made the collection, got its forked child " + std::to_string(getpid()) +
                             "; a child may only look up");
  }
}

void Collection::check_idle(const char* call) const {
  if (active_ != nullptr && !active_->finished()) {
    throw SnapshotInProgress(std::string(call) + ": expected no snapshot in flight, got one of step " +
                             std::to_string(active_->step()) + "; commit or abort it first");
  }
}

void Collection::check_batch(const Batch& batch, const char* call) const {
  if (batch.pool() != batches_.get()) {
    throw std::invalid_argument(std::string(call) + ": expected a batch of this collection, got another's");
  }
  if (batch.consumed) {
    throw Error(std::string(call) +
                ": the batch was consumed before; a fused optimizer updates once per forward, a second backward "
                "through the same forward is not possible");
  }
}

std::shared_ptr<Snapshot> Collection::fail_torn(int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (active_ == nullptr || active_->finished() || walk_over_at_step_) return nullptr;
  active_->fail("rows of table '" + table(index).spec().name + "' were written from outside while they were taken");
  return active_;
}

void Collection::mark_dirty(int64_t index, const int64_t* global_rows, int64_t n) {
  check_owner("mark_dirty");
  check_rows(index, global_rows, n);
  fail_torn(index);
  const std::lock_guard<std::mutex> lock(mutex_);
  Table& t = table(index);
  if (!t.spec().track_dirty) return;
  const TableView view = t.view();
  TrackerDelta delta;
  for (int64_t i = 0; i < n; ++i) {
    // The walk may not have come by yet: the parity stays as it is.
    uint32_t* cell = &view.meta[global_rows[i] - view.row_offset].word;
    const uint32_t before = __atomic_fetch_or(cell, kDirtyBit, __ATOMIC_ACQ_REL);
    delta.dirty += (before & kDirtyBit) == 0 ? 1 : 0;
  }
  t.add(delta);
}

void Collection::mark_all_dirty(int64_t index) {
  check_owner("mark_dirty");
  if (const std::shared_ptr<Snapshot> torn = fail_torn(index)) torn->join();
  const std::lock_guard<std::mutex> lock(mutex_);
  table(index).mark_all_dirty();
}

void Collection::bind_weight(int64_t index, float* weight, std::shared_ptr<void> owner) {
  mark_all_dirty(index);                                    // ends a running walk, which reads the old memory
  std::shared_ptr<void> old = table(index).weight_owner();  // let go after the lock: it may be Python's
  const std::lock_guard<std::mutex> lock(mutex_);
  table(index).bind_weight(weight, std::move(owner));
}

void Collection::check_rows(int64_t index, const int64_t* rows, int64_t n) const {
  const TableSpec& spec = tables_.at(static_cast<size_t>(index))->spec();
  for (int64_t i = 0; i < n; ++i) {
    if (rows[i] < spec.row_offset || rows[i] >= spec.row_offset + spec.num_embeddings) {
      throw std::out_of_range("rows: expected " + std::to_string(spec.row_offset) + " <= row < " +
                              std::to_string(spec.row_offset + spec.num_embeddings) + " for table '" + spec.name +
                              "', got " + std::to_string(rows[i]) + " at position " + std::to_string(i));
    }
  }
}

void Collection::load_rows(int64_t index, const int64_t* rows, int64_t n, const float* weight, const float* state,
                           bool dirty) {
  check_owner("load_rows");
  check_rows(index, rows, n);
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("load_rows");
  Table& t = table(index);
  t.enter_deferred();
  const TableView view = t.view();
  TrackerDelta delta;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = rows[i] - view.row_offset;
    std::copy_n(weight + i * view.dim, view.dim, view.weight + row * view.dim);
    if (state != nullptr) view.meta[row].state = state[i];
    t.set_word(row, dirty && view.track_dirty ? kDirtyBit : 0, &delta);
  }
  t.add(delta);
}

void Collection::reset_rows(int64_t index, int64_t begin, int64_t end) {
  check_owner("reset_rows");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("reset_rows");
  Table& t = table(index);
  t.enter_deferred();
  t.initialise(begin - t.spec().row_offset, end - t.spec().row_offset);
  TrackerDelta delta;
  for (int64_t row = begin - t.spec().row_offset; row < end - t.spec().row_offset; ++row) {
    t.set_word(row, t.word(row) & kDirtyBit, &delta);
  }
  t.add(delta);
}

void Collection::discard_rows(int64_t index, int64_t begin, int64_t end) {
  check_owner("discard_rows");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("discard_rows");
  const TableView view = table(index).view();
  for (int64_t row = begin - view.row_offset; row < end - view.row_offset; ++row) {
    std::fill_n(view.weight + row * view.dim, view.dim, std::numeric_limits<float>::quiet_NaN());
    view.meta[row].state = std::numeric_limits<float>::quiet_NaN();
  }
}

void Collection::clear_trackers(int64_t index, int64_t begin, int64_t end, bool dirty) {
  check_owner("clear_trackers");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("clear_trackers");
  Table& t = table(index);
  t.enter_deferred();
  const uint32_t kept = dirty ? 0 : kDirtyBit;
  TrackerDelta delta;
  for (int64_t row = begin - t.spec().row_offset; row < end - t.spec().row_offset; ++row) {
    t.set_word(row, t.word(row) & kept, &delta);
  }
  t.add(delta);
}

void Collection::set_trackers(int64_t index, const uint32_t* words) {
  check_owner("set_trackers");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("set_trackers");
  Table& t = table(index);
  t.enter_deferred();
  TrackerDelta delta;
  for (int64_t row = 0; row < t.num_rows(); ++row) t.set_word(row, 0, &delta);
  for (int64_t row = 0; row < t.num_rows(); ++row) t.set_word(row, words[row], &delta);
  t.add(delta);
}

void Collection::read_trackers(int64_t index, uint32_t* words) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Table& t = table(index);
  t.enter_deferred();
  for (int64_t row = 0; row < t.num_rows(); ++row) words[row] = t.word(row);
}

std::vector<int64_t> Collection::sampled_rows(int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  table(index).enter_deferred();
  return table(index).listed_rows();
}

std::shared_ptr<Snapshot> Collection::begin(const std::vector<SelectionRequest>& selections, bool clears_dirty,
                                            const std::vector<int64_t>& shard_rows, bool blocking) {
  check_owner("begin");
  std::unique_lock<std::mutex> lock(mutex_);
  check_idle("begin");
  for (const auto& table : tables_) table->enter_deferred();
  std::vector<Snapshot::Part> parts;
  const uint64_t sequence = static_cast<uint64_t>(snapshots_begun_);
  for (int64_t t = 0; t < num_tables(); ++t) {
    Snapshot::Part part;
    part.table = &table(t);
    const SelectionRequest& request = selections[static_cast<size_t>(t)];
    part.rule.kind = request.kind;
    if (request.kind == Select::kAll) part.expected_rows = part.table->num_rows();
    if (request.kind == Select::kDirty) part.expected_rows = part.table->num_dirty();
    if (request.kind == Select::kSampled) part.expected_rows = part.table->slots_used();
    if (request.kind == Select::kMostUsed) {
      part.rule = part.table->most_used(request.rows, sequence, &part.expected_rows);
    }
    part.rule.clears_dirty = clears_dirty;
    part.shard_rows = shard_rows.empty() ? 0 : shard_rows[static_cast<size_t>(t)];
    parts.push_back(part);
  }
  auto snapshot = std::make_shared<Snapshot>(std::move(parts), step_, &mutex_, staging_);
  if (blocking) lock.unlock();  // the walk ends by sealing under the mutex
  snapshot->start(blocking);
  if (blocking) lock.lock();
  active_ = snapshot;
  walk_over_at_step_ = blocking;
  ++snapshots_begun_;
  return snapshot;
}

}  // namespace cpr
