// DeviceCollection::update: lays out its workspace and gives the launches of a step.
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "table/device_collection.hpp"
#include "table/device_memory.hpp"

namespace cpr {

// What an update needs beside its batch.
struct DeviceCollection::Workspace {
  uint64_t* keys = nullptr;
  uint8_t* sampled = nullptr;
  cuda::PartialSums sums;
  void* seam = nullptr;
  int64_t bytes = 0;
};

DeviceCollection::Workspace DeviceCollection::place_workspace(int64_t num_ids, void* memory) const {
  Places places(memory);
  Workspace workspace;
  workspace.keys = places.take<uint64_t>(num_ids);
  workspace.sampled = places.take<uint8_t>(cuda::windows_of(num_ids) * cuda::kWindowKeys);
  workspace.sums = place_sums<float>(num_ids, layout_.max_dim, &places);
  workspace.seam = places.take<char>(static_cast<int64_t>(device_->seam_bytes(num_ids)));
  workspace.bytes = places.bytes();
  return workspace;
}

int64_t DeviceCollection::update_bytes(int64_t num_ids) const { return place_workspace(num_ids, nullptr).bytes; }

void DeviceCollection::check_batch(const DeviceBatch& batch, const char* call) const {
  if (batch.collection != this) {
    throw std::invalid_argument(std::string(call) + ": expected a batch of this collection, got another's");
  }
  if (batch.consumed) {
    throw Error(std::string(call) +
                ": the batch was consumed before; a fused optimizer updates once per forward, a second backward "
                "through the same forward is not possible");
  }
}

void DeviceCollection::weight_grad(const DeviceBatch& batch, const void* grad, void* out, cuda::Stream stream) {
  check_ready("per_sample_weight_grad");
  check_batch(batch, "per_sample_weight_grad");
  raise_errors("per_sample_weight_grad", stream);
  cuda::WeightGradArgs args;
  args.tables = device_tables();
  args.features = device_features();
  args.state = device_state();
  args.batch_size = batch.batch_size;
  args.num_ids = batch.num_ids;
  args.batch = batch.view;
  args.wide = layout_.wide;
  args.grad = grad;
  args.grad_stride = layout_.output_dim;
  args.out = out;
  device_->weight_grad(args, stream);
}

void DeviceCollection::freeze(const std::vector<bool>& frozen, cuda::Stream stream) {
  for (int64_t t = 0; t < num_tables(); ++t) {
    cuda::TableRecord& record = tables_[static_cast<size_t>(t)];
    const uint32_t value = frozen[static_cast<size_t>(t)] ? 1 : 0;
    if (record.frozen == value) continue;
    record.frozen = value;  // alone: the rest of the record may have changed on the device
    uint32_t* const to = &device_tables()[t].frozen;
    device_->upload(to, &record.frozen, sizeof record.frozen, stream);
  }
}

int DeviceCollection::row_bits() const {
  const cuda::TableRecord& last = tables_.back();
  const int64_t rows = last.first_row + last.view.num_rows;
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(rows - 1))));
}

cuda::UpdateArgs DeviceCollection::update_args(const DeviceBatch& batch, const float* grad, float grad_scale,
                                               const Workspace& workspace) const {
  cuda::UpdateArgs args;
  args.tables = device_tables();
  args.features = device_features();
  args.state = device_state();
  args.num_tables = num_tables();
  args.batch_size = batch.batch_size;
  args.num_ids = batch.num_ids;
  args.batch = batch.view;
  args.unpooled = layout_.unpooled;
  args.keys = workspace.keys;
  args.grad = grad;
  args.grad_stride = layout_.output_dim;
  args.grad_size = batch.batch_size * layout_.output_dim;
  args.grad_scale = grad_scale;
  args.optimizer = optimizer_.kind;
  args.sampled = workspace.sampled;
  args.partial = workspace.sums;
  if (staging_ != nullptr) args.touched = staging_->args.area;
  return args;
}

// One launch, or several where a snapshot has no room for all rows at once. `room`: ids that the first may have.
void DeviceCollection::launch_windows(void (cuda::Device::*kernel)(const cuda::UpdateArgs&, cuda::Stream),
                                      cuda::UpdateArgs args, int64_t room, cuda::Stream stream) {
  const int64_t windows = cuda::windows_of(args.num_ids);
  for (;;) {
    if (room < args.num_ids - args.begin_window * cuda::kWindowKeys) {
      args.end_window = args.begin_window + room / cuda::kWindowKeys;
    } else {
      args.end_window = windows;
    }
    args.ends_step = args.end_window == windows;
    (device_.get()->*kernel)(args, stream);
    if (args.ends_step) return;
    args.begin_window = args.end_window;
    room = active_->room_within_step(args.num_ids - args.begin_window * cuda::kWindowKeys);
  }
}

void DeviceCollection::update(DeviceBatch* batch, const float* grad, float grad_scale, const std::vector<bool>& frozen,
                              void* memory, cuda::Stream stream) {
  check_ready("update");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_batch(*batch, "update");
  raise_errors("update", stream);
  freeze(frozen, stream);
  const int64_t room = make_room(batch->num_ids, true, stream);
  const Workspace workspace = place_workspace(batch->num_ids, memory);
  const cuda::UpdateArgs args = update_args(*batch, grad, grad_scale, workspace);
  if (batch->num_ids > 0) {
    device_->sort_keys(batch->view.keys, workspace.keys, batch->num_ids, row_bits(), workspace.seam, stream);
  }
  device_->partial_sums(args, stream);
  launch_windows(&cuda::Device::update, args, room, stream);
  // Who was promised room for all has it for those who are evicted too.
  const bool whole = room >= batch->num_ids;
  launch_windows(&cuda::Device::enter_sampled, args, whole ? room : active_->room_within_step(batch->num_ids), stream);
  batch->consumed = true;
}

}  // namespace cpr
