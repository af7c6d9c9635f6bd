// Snapshots and totals of a collection on a device, and rows that were written from outside.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "table/device_collection.hpp"
#include "table/device_memory.hpp"
#include "table/device_snapshot.hpp"

namespace cpr {

std::shared_ptr<DeviceSnapshot> DeviceCollection::begin(const std::vector<SelectionRequest>& selections,
                                                        bool clears_dirty, const std::vector<ShardRule>& shards,
                                                        bool blocking, bool walks, cuda::Stream stream) {
  check_scratch("begin");
  std::unique_lock<std::mutex> lock = lock_idle("begin");
  std::vector<DeviceSnapshot::Request> requests;
  for (size_t t = 0; t < specs_.size(); ++t) {
    DeviceSnapshot::Request request;
    request.rule.kind = selections[t].kind;
    request.rule.clears_dirty = clears_dirty;
    request.rule.key = hash2(tables_[t].key + 1, snapshots_begun_);
    request.quota = selections[t].rows;
    request.mask = selections[t].mask;
    if (request.rule.kind == Select::kRows && request.mask->num_taken == 0) request.rule.kind = Select::kNone;
    if (!shards.empty()) request.shards = shards[t];
    requests.push_back(std::move(request));
  }
  const DeviceTables tables{device_.get(),  &tables_, device_tables(), &device_state()->step,
                            staging_.get(), &mutex_,  &saved_};
  active_ = std::make_shared<DeviceSnapshot>(tables, std::move(requests), pool_);
  active_->start(walks, stream);
  ++snapshots_begun_;
  if (blocking) {
    lock.unlock();
    active_->take_all();
  }
  return active_;
}

// Ids whose rows the first launch of an update may meet.
int64_t DeviceCollection::make_room(int64_t num_ids, bool in_parts, cuda::Stream stream) {
  if (active_ == nullptr || active_->finished()) return num_ids;
  return active_->prepare_step(num_ids, in_parts, stream);
}

void DeviceCollection::prepare_step(int64_t num_ids, cuda::Stream stream) {
  check_owner("prepare_step");
  const std::lock_guard<std::mutex> lock(mutex_);
  make_room(num_ids, false, stream);
}

DeviceCollection::~DeviceCollection() {
  if (getpid() == owner_) {
    close();
    return;
  }
  // See SnapshotReader::owned_by_this_process; and CUDA is of no use in a forked child, not even to free memory.
  new std::shared_ptr<DeviceSnapshot>(std::move(active_));
  new std::unique_ptr<DeviceStaging>(std::move(staging_));
  new std::shared_ptr<void>(failed_);
  new std::shared_ptr<cuda::Device>(device_);
}

void DeviceCollection::close() {
  check_owner("close");
  std::shared_ptr<DeviceSnapshot> snapshot;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    snapshot = std::move(active_);
    active_ = nullptr;
  }
  if (snapshot != nullptr) snapshot->abort();
}

void DeviceCollection::fail_torn(int64_t index) {
  if (active_ == nullptr || active_->finished() || active_->was_over_at_step()) return;
  active_->fail("rows of table '" + spec(index).name + "' were written from outside while they were taken");
}

void DeviceCollection::mark_dirty(int64_t index, const int64_t* rows, int64_t n, cuda::Stream stream) {
  check_scratch("mark_dirty");
  check_rows(index, rows, n);
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_torn(index);
  if (!spec(index).track_dirty) return;
  put_items(row_args(cuda::RowStep::kMark, index), index, rows, n, nullptr, nullptr, stream);
}

void DeviceCollection::mark_all_dirty(int64_t index, cuda::Stream stream) {
  check_scratch("mark_dirty");
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_torn(index);
  if (spec(index).track_dirty) {
    range_step(row_args(cuda::RowStep::kMarkAll, index), 0, spec(index).num_embeddings, stream);
  }
}

// Counted anew; waits for the stream.
std::vector<int64_t> DeviceCollection::tally(int64_t index, cuda::Stream stream) {
  check_scratch("histogram");
  const std::lock_guard<std::mutex> lock(mutex_);
  cuda::SnapshotArgs args = staging_->args;
  args.tables = device_tables();
  args.first_table = index;
  args.end_table = index + 1;
  device_->fill(args.partial, 0, static_cast<size_t>(staging_->partial_bytes), stream);
  args.step = cuda::SnapshotStep::kTally;
  device_->snapshot(args, staging_->tiles, stream);
  args.step = cuda::SnapshotStep::kReduce;
  device_->snapshot(args, 1, stream);
  std::vector<int64_t> numbers(cuda::kTallySize);
  device_->download(numbers.data(), args.tallies + index * cuda::kTallySize, numbers.size() * sizeof(int64_t), stream);
  device_->synchronize(stream);
  return numbers;
}

std::vector<int64_t> DeviceCollection::histogram(int64_t index, cuda::Stream stream) {
  std::vector<int64_t> numbers = tally(index, stream);
  numbers.resize(kCountBuckets);
  return numbers;
}

std::vector<int64_t> DeviceCollection::drift_histogram(int64_t index, cuda::Stream stream) {
  const std::vector<int64_t> numbers = tally(index, stream);
  return {numbers.begin() + cuda::kTallyDrifts, numbers.begin() + cuda::kTallyDirty};
}

int64_t DeviceCollection::num_dirty(int64_t index, cuda::Stream stream) {
  return tally(index, stream)[cuda::kTallyDirty];
}

}  // namespace cpr
