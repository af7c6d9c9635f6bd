#include "table/collection.hpp"

#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"
#include "table/layout.hpp"

namespace cpr {

Collection::Collection(std::vector<TableSpec> tables, std::vector<int64_t> features, OptimizerSpec optimizer,
                       uint64_t seed, int64_t max_staging_bytes, const std::shared_ptr<Region>& region)
    : features_(std::move(features)),
      features_of_table_(tables.size()),
      optimizer_(optimizer),
      sample_key_(hash2(seed, 0x53U)),
      staging_(std::make_shared<StagingPool>(max_staging_bytes)),
      workspaces_(kMaxThreads),
      owner_(getpid()) {
  size_t weight_bytes = 0;
  size_t state_bytes = 0;
  size_t tracker_bytes = 0;
  for (const TableSpec& spec : tables) {
    weight_bytes += Arena::aligned(Table::weight_bytes(spec));
    state_bytes += Table::state_bytes(spec, optimizer.kind);
    tracker_bytes += Arena::aligned(Table::tracker_bytes(spec));
  }
  const Layout layout = make_layout(tables, features_);
  feature_column_ = layout.feature_column;
  output_dim_ = layout.output_dim;
  unpooled_ = layout.unpooled;
  wide_ = layout.wide;
  pools_max_ = layout.pools_max;
  log2_period_ = layout.log2_period;
  const Arenas arenas = place(weight_bytes, state_bytes, tracker_bytes, region);
  for (TableSpec& spec : tables) tables_.push_back(std::make_unique<Table>(std::move(spec), optimizer, seed, arenas));
  for (size_t f = 0; f < features_.size(); ++f) {
    features_of_table_.at(static_cast<size_t>(features_[f])).push_back(static_cast<int64_t>(f));
  }
  if (region_ != nullptr && region_->attached()) {
    find_left();
  } else {
    for (const auto& table : tables_) table->initialise(0, table->num_rows());
  }
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

void Collection::mark_all_dirty(int64_t index) {
  check_owner("mark_dirty");
  if (const std::shared_ptr<Snapshot> torn = fail_torn(index)) torn->join();
  const std::lock_guard<std::mutex> lock(mutex_);
  table(index).mark_all_dirty();
}

void Collection::check_bound(const char* call) const {
  for (const auto& table : tables_) {
    if (table->view().weight == nullptr) {
      throw std::invalid_argument(std::string(call) + ": external table '" + table->spec().name +
                                  "' has no weight yet: bind_weight first");
    }
  }
}

void Collection::bind_weight(int64_t index, void* weight, std::shared_ptr<void> owner) {
  if (region_ != nullptr && weight != table(index).view().weight) {
    throw std::invalid_argument("table '" + table(index).spec().name +
                                "' lies in shared memory: its weight can't be memory of the caller's");
  }
  mark_all_dirty(index);                                    // ends a running walk, which reads the old memory
  std::shared_ptr<void> old = table(index).weight_owner();  // let go after the lock: it may be Python's
  const std::lock_guard<std::mutex> lock(mutex_);
  table(index).bind_weight(weight, std::move(owner));
}

void Collection::bind_state(int64_t index, const std::vector<StateArray>& arrays, std::shared_ptr<void> owner) {
  std::shared_ptr<void> old = table(index).state_owner();  // let go after the lock: it may be Python's
  const std::unique_lock<std::mutex> lock = lock_idle("bind_state");
  table(index).bind_state(arrays, std::move(owner));
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

std::shared_ptr<Snapshot> Collection::begin(const std::vector<SelectionRequest>& selections, bool clears_dirty,
                                            const std::vector<ShardRule>& shards, bool blocking, bool walks) {
  check_bound("begin");
  std::unique_lock<std::mutex> lock = lock_idle("begin");
  for (const auto& table : tables_) table->enter_deferred();
  std::vector<Snapshot::Part> parts;
  const uint64_t sequence = static_cast<uint64_t>(book_->snapshots_begun);
  for (int64_t t = 0; t < num_tables(); ++t) {
    Snapshot::Part part;
    part.table = &table(t);
    const SelectionRequest& request = selections[static_cast<size_t>(t)];
    part.rule.kind = request.kind;
    if (request.kind == Select::kAll) part.expected_rows = part.table->num_rows();
    if (request.kind == Select::kDirty) part.expected_rows = part.table->num_dirty();
    if (request.kind == Select::kSampled) part.expected_rows = part.table->slots_used();
    if (request.kind == Select::kMostUsed || request.kind == Select::kMostDrifted) {
      part.rule = part.table->highest(request.kind, request.rows, sequence, &part.expected_rows);
    }
    if (request.kind == Select::kRows) {
      part.mask = request.mask;
      part.expected_rows = request.mask->num_taken;
      part.rule.mask = request.mask->bits.data();
      if (part.expected_rows == 0) part.rule.kind = Select::kNone;
    }
    part.rule.clears_dirty = clears_dirty;
    if (!shards.empty()) part.shards = shards[static_cast<size_t>(t)];
    parts.push_back(part);
  }
  begin_logs(parts, clears_dirty);
  std::function<void()> ended;
  if (region_ != nullptr) ended = [this] { end_logs(); };
  auto snapshot = std::make_shared<Snapshot>(std::move(parts), step_, &mutex_, staging_, std::move(ended));
  if (blocking) lock.unlock();  // the walk ends by sealing under the mutex
  snapshot->start(blocking, walks);
  if (blocking) lock.lock();
  active_ = snapshot;
  walk_over_at_step_ = blocking;
  ++book_->snapshots_begun;
  return snapshot;
}

}  // namespace cpr
