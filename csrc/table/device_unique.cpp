// What is done to the unique rows of one table without an optimizer: gradients for torch's own, and rows that are
// tracked or scaled outside of updates (table/outside.cpp on the CPU).
#include "table/device_collection.hpp"
#include "table/device_memory.hpp"

namespace cpr {

// Workspace beside a batch.
struct DeviceCollection::UniqueSpace {
  uint32_t* sampled = nullptr;
  cuda::PartialSums sums;  // of a gradient
  // Of ids that have no batch:
  uint64_t* keys = nullptr;
  uint64_t* sorted = nullptr;
  uint32_t* starts = nullptr;
  uint32_t* unique = nullptr;
  void* seam = nullptr;
  int64_t bytes = 0;
};

DeviceCollection::UniqueSpace DeviceCollection::place_unique(int64_t num_ids, bool sums, void* memory) const {
  Places places(memory);
  UniqueSpace space;
  space.sampled = places.take<uint32_t>(num_ids);
  if (sums) {
    space.sums = layout_.wide ? place_sums<double>(num_ids, layout_.max_dim, &places)
                              : place_sums<float>(num_ids, layout_.max_dim, &places);
  } else {
    space.keys = places.take<uint64_t>(num_ids);
    space.sorted = places.take<uint64_t>(num_ids);
    space.starts = places.take<uint32_t>(num_ids);
    space.unique = places.take<uint32_t>(1);
  }
  space.seam = places.take<char>(static_cast<int64_t>(device_->seam_bytes(num_ids)));
  space.bytes = places.bytes();
  return space;
}

int64_t DeviceCollection::gradient_bytes(int64_t num_ids) const { return place_unique(num_ids, true, nullptr).bytes; }

int64_t DeviceCollection::ids_bytes(int64_t num_ids) const { return place_unique(num_ids, false, nullptr).bytes; }

cuda::UniqueArgs DeviceCollection::unique_args(int64_t table, int64_t num_ids) const {
  cuda::UniqueArgs args;
  args.update.tables = device_tables();
  args.update.features = device_features();
  args.update.state = device_state();
  args.update.num_tables = num_tables();
  args.update.num_ids = num_ids;
  args.update.only_table = table;
  if (staging_ != nullptr) args.update.touched = staging_->args.area;
  return args;
}

void DeviceCollection::find_unique(const uint64_t* keys, uint64_t* sorted, uint32_t* starts, uint32_t* unique,
                                   int64_t num_ids, void* seam, cuda::Stream stream) {
  if (num_ids == 0) return device_->fill(unique, 0, sizeof(uint32_t), stream);
  device_->sort_keys(keys, sorted, num_ids, row_bits(), seam, stream);
  device_->compact_runs(sorted, starts, unique, num_ids, seam, stream);
}

void DeviceCollection::enter_unique(cuda::UniqueArgs args, cuda::Stream stream) {
  args.step = cuda::UniqueStep::kEnterSampled;
  device_->unique_rows(args, stream);
}

void DeviceCollection::gradient(DeviceBatch* batch, const void* grad, int64_t table, int64_t* rows, void* values,
                                int64_t* count, void* memory, cuda::Stream stream) {
  check_ready("gradient");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_batch(*batch, "gradient");
  raise_errors("gradient", stream);
  make_room(batch->num_ids, false, stream);
  const UniqueSpace space = place_unique(batch->num_ids, true, memory);
  const cuda::BatchView& view = batch->view;
  cuda::UniqueArgs args = unique_args(table, batch->num_ids);
  args.update.batch_size = batch->batch_size;
  args.update.batch = view;
  args.update.unpooled = layout_.unpooled;
  args.update.keys = view.sorted;
  args.update.grad = grad;
  args.update.grad_stride = layout_.output_dim;
  args.update.partial = space.sums;
  args.update.wide = layout_.wide;
  args.starts = view.starts;
  args.unique = view.unique;
  args.sampled = space.sampled;
  args.rows = rows;
  args.values = values;
  args.count = reinterpret_cast<uint64_t*>(count);
  args.steps = batch->sorted ? 0 : 1;  // one step a batch, however many tables or repeated backwards ask
  if (!batch->sorted) {
    find_unique(view.keys, view.sorted, view.starts, view.unique, batch->num_ids, space.seam, stream);
    batch->sorted = true;
  } else {  // the lookup has set them to 0
    device_->fill(view.arrived, 0, static_cast<size_t>(view.num_arrived) * sizeof(uint32_t), stream);
  }
  device_->partial_sums(args.update, stream);
  device_->unique_rows(args, stream);
  enter_unique(args, stream);
}

cuda::UniqueArgs DeviceCollection::read_unique(int64_t table, const void* ids, bool ids_are_64bit, int64_t num_ids,
                                               bool samples, void* memory, cuda::Stream stream) {
  const UniqueSpace space = place_unique(num_ids, false, memory);
  cuda::IdArgs read;
  read.tables = device_tables();
  read.state = device_state();
  read.table = table;
  read.ids_are_64bit = ids_are_64bit;
  read.ids = ids;
  read.num_ids = num_ids;
  read.samples = samples;
  read.sample_key = sample_key_;
  read.log2_period = layout_.log2_period;
  read.keys = space.keys;
  device_->read_keys(read, stream);
  find_unique(space.keys, space.sorted, space.starts, space.unique, num_ids, space.seam, stream);
  cuda::UniqueArgs args = unique_args(table, num_ids);
  args.update.keys = space.sorted;
  args.starts = space.starts;
  args.unique = space.unique;
  args.sampled = space.sampled;
  return args;
}

void DeviceCollection::track(int64_t table, const void* ids, bool ids_are_64bit, int64_t num_ids, void* memory,
                             cuda::Stream stream) {
  check_ready("track");
  const std::lock_guard<std::mutex> lock(mutex_);
  raise_errors("track", stream);
  make_room(num_ids, false, stream);
  cuda::UniqueArgs args = read_unique(table, ids, ids_are_64bit, num_ids, true, memory, stream);
  args.step = cuda::UniqueStep::kTrack;
  device_->unique_rows(args, stream);
  enter_unique(args, stream);
}

void DeviceCollection::renormalise(int64_t table, const void* ids, bool ids_are_64bit, int64_t num_ids, double max_norm,
                                   int norm_type, int64_t* count, void* memory, cuda::Stream stream) {
  check_ready("renormalise");
  const std::lock_guard<std::mutex> lock(mutex_);
  raise_errors("renormalise", stream);
  make_room(num_ids, false, stream);
  cuda::UniqueArgs args = read_unique(table, ids, ids_are_64bit, num_ids, false, memory, stream);
  args.step = cuda::UniqueStep::kRenormalise;
  args.max_norm = max_norm;
  args.norm_type = norm_type;
  args.count = reinterpret_cast<uint64_t*>(count);
  device_->fill(count, 0, sizeof *count, stream);
  device_->unique_rows(args, stream);
}

}  // namespace cpr
