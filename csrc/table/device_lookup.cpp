// DeviceCollection::lookup and the errors that ids and offsets leave.
#include <stdexcept>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "table/device_collection.hpp"
#include "table/device_memory.hpp"

namespace cpr {

cuda::BatchView DeviceCollection::place_batch(int64_t num_ids, int64_t batch_size, bool weighted, void* memory,
                                              int64_t* bytes) const {
  Places places(memory);
  const int64_t bags = layout_.unpooled ? num_ids : num_features() * batch_size;
  cuda::BatchView view;
  view.keys = places.take<uint64_t>(num_ids);
  if (!layout_.unpooled) view.bag_of = places.take<uint32_t>(num_ids);
  if (layout_.pools_mean) view.bag_length = places.take<uint32_t>(bags);
  if (layout_.pools_max) view.argmax = places.take<uint32_t>(batch_size * layout_.output_dim);
  if (weighted)
    view.weights = layout_.wide ? places.take<double>(num_ids) : static_cast<void*>(places.take<float>(num_ids));
  view.num_arrived = num_ids / (kSumFanout * kSumFanout) * 2 + cuda::kMaxPartialLevels;
  view.arrived = places.take<uint32_t>(view.num_arrived);
  if (optimizer_.kind == Optimizer::kNone) {
    view.sorted = places.take<uint64_t>(num_ids);
    view.starts = places.take<uint32_t>(num_ids);
    view.unique = places.take<uint32_t>(1);
  }
  *bytes = places.bytes();
  return view;
}

int64_t DeviceCollection::batch_bytes(int64_t num_ids, int64_t batch_size, bool weighted) const {
  int64_t bytes = 0;
  place_batch(num_ids, batch_size, weighted, nullptr, &bytes);
  return bytes;
}

std::shared_ptr<DeviceBatch> DeviceCollection::lookup(const LookupInput& in, void* memory, std::shared_ptr<void> owner,
                                                      cuda::Stream stream) {
  check_ready("lookup");
  raise_errors("lookup", stream);
  if (!layout_.unpooled && num_features() * in.batch_size >= kMaxIds) {
    throw std::invalid_argument("lookup: expected fewer than 2^31 bags, got " +
                                std::to_string(num_features() * in.batch_size));
  }
  const bool weighted = in.per_sample_weights != nullptr;
  cuda::LookupArgs args;
  std::shared_ptr<DeviceBatch> batch;
  if (in.keep) {
    batch = std::make_shared<DeviceBatch>();
    batch->collection = this;
    batch->num_ids = in.num_ids;
    batch->batch_size = in.batch_size;
    batch->weighted = weighted;
    batch->owner = std::move(owner);
    int64_t bytes = 0;
    batch->view = place_batch(in.num_ids, in.batch_size, weighted, memory, &bytes);
    args.batch = batch->view;
  }
  args.tables = device_tables();
  args.features = device_features();
  args.state = device_state();
  args.num_features = num_features();
  args.bags = layout_.unpooled ? in.num_ids : num_features() * in.batch_size;
  args.batch_size = in.batch_size;
  args.unpooled = layout_.unpooled;
  args.ids_are_64bit = in.ids_are_64bit;
  args.offsets_are_64bit = in.offsets_are_64bit;
  args.ids = in.ids;
  args.num_ids = in.num_ids;
  args.offsets = in.offsets;
  args.ids_per_bag = in.ids_per_bag;
  args.weights = in.per_sample_weights;
  args.out = in.out;
  args.out_stride = layout_.output_dim;
  args.wide = layout_.wide;
  args.keep = in.keep;
  args.samples = in.keep;
  args.sample_key = sample_key_;
  args.log2_period = layout_.log2_period;
  device_->lookup(args, stream);
  return batch;
}

void DeviceCollection::synchronize(cuda::Stream stream) {
  check_ready("synchronize");
  device_->synchronize(stream);
  raise_errors("synchronize", stream);
}

void DeviceCollection::raise_errors(const char* call, cuda::Stream stream) {
  auto* failed = static_cast<uint32_t*>(failed_.get());
  if (load_acquire(failed) == 0 || device_->capturing(stream)) return;
  const cuda::DeviceState state = read_state(stream);
  store_relaxed(failed, 0);
  const cuda::DeviceState clean;
  device_->upload(&device_state()->bad_id, &clean.bad_id, sizeof clean.bad_id, stream);
  device_->upload(&device_state()->bad_table, &clean.bad_table, sizeof clean.bad_table, stream);
  device_->upload(&device_state()->bad_position, &clean.bad_position, sizeof clean.bad_position, stream);
  device_->upload(&device_state()->bad_offset, &clean.bad_offset, sizeof clean.bad_offset, stream);
  device_->upload(&device_state()->failed, &clean.failed, sizeof clean.failed, stream);
  throw_error(state, call);
}

namespace {

// The device keeps 33 bits of a value: those at their ends stand for all beyond them.
std::string value_of(const cuda::InputError& error) {
  const bool high = error.value == cuda::kErrorLimit - 1;
  const bool low = error.value == -cuda::kErrorLimit;
  return (high ? "at least " : low ? "at most " : "") + std::to_string(error.value);
}

}  // namespace

void DeviceCollection::throw_error(const cuda::DeviceState& state, const char* call) const {
  const bool offset = state.bad_offset != cuda::kNoError;
  const cuda::InputError error = cuda::unpack_error(offset ? state.bad_offset : state.bad_id);
  const std::string position = std::to_string(error.position);
  const std::string found =
      " (of an earlier lookup, found by " + std::string(call) + "; updates since then did nothing)";
  if (offset) {
    throw std::invalid_argument("offsets: expected 0, then ascending values up to the number of ids, got offsets[" +
                                position + "] = " + value_of(error) + found);
  }
  const TableSpec& bad = spec(static_cast<int64_t>(state.bad_table & 0xffffffffU));
  throw std::out_of_range("ids: expected 0 <= id < " + std::to_string(bad.num_embeddings) + " for table '" + bad.name +
                          "', got id " + value_of(error) + " at position " + position + found);
}

}  // namespace cpr
