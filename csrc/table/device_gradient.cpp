// DeviceCollection::gradient: what torch's own optimizers get, and the trackers of the rows.
#include "table/device_collection.hpp"
#include "table/device_memory.hpp"

namespace cpr {

int64_t DeviceCollection::place_gradient(int64_t num_ids, void* memory, cuda::UpdateArgs* args, void** seam) const {
  Places places(memory);
  args->sampled = places.take<uint8_t>(cuda::windows_of(num_ids) * cuda::kWindowKeys);
  args->partial = layout_.wide ? place_sums<double>(num_ids, layout_.max_dim, &places)
                               : place_sums<float>(num_ids, layout_.max_dim, &places);
  *seam = places.take<char>(static_cast<int64_t>(device_->seam_bytes(num_ids)));
  return places.bytes();
}

int64_t DeviceCollection::gradient_bytes(int64_t num_ids) const {
  cuda::UpdateArgs args;
  void* seam = nullptr;
  return place_gradient(num_ids, nullptr, &args, &seam);
}

// Once a batch: its keys stay as they are.
void DeviceCollection::sort_batch(DeviceBatch* batch, void* seam, cuda::Stream stream) {
  if (batch->sorted) return;
  const cuda::BatchView& view = batch->view;
  if (batch->num_ids > 0) {
    device_->sort_keys(view.keys, view.sorted, batch->num_ids, row_bits(), seam, stream);
    device_->compact_runs(view.sorted, view.starts, view.unique, batch->num_ids, seam, stream);
  } else {
    device_->fill(view.unique, 0, sizeof(uint32_t), stream);
  }
  batch->sorted = true;
}

void DeviceCollection::gradient(DeviceBatch* batch, const void* grad, int64_t table, int64_t* rows, void* values,
                                int64_t* count, void* memory, cuda::Stream stream) {
  check_ready("gradient");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_batch(*batch, "gradient");
  raise_errors("gradient", stream);
  make_room(batch->num_ids, false, stream);
  cuda::GradientArgs args;
  cuda::UpdateArgs& update = args.update;
  void* seam = nullptr;
  place_gradient(batch->num_ids, memory, &update, &seam);
  update.tables = device_tables();
  update.features = device_features();
  update.state = device_state();
  update.num_tables = num_tables();
  update.batch_size = batch->batch_size;
  update.num_ids = batch->num_ids;
  update.batch = batch->view;
  update.unpooled = layout_.unpooled;
  update.keys = batch->view.sorted;
  update.grad = grad;
  update.grad_stride = layout_.output_dim;
  update.end_window = cuda::windows_of(batch->num_ids);
  update.wide = layout_.wide;
  update.only_table = table;
  update.steps = batch->sorted ? 0 : 1;  // one step a batch, however many tables or repeated backwards ask
  if (staging_ != nullptr) update.touched = staging_->args.area;
  args.rows = rows;
  args.values = values;
  args.count = count;
  if (batch->sorted) {  // the lookup has set them to 0
    device_->fill(batch->view.arrived, 0, static_cast<size_t>(batch->view.num_arrived) * sizeof(uint32_t), stream);
  }
  sort_batch(batch, seam, stream);
  device_->fill(update.sampled, 0, static_cast<size_t>(batch->num_ids), stream);
  device_->partial_sums(update, stream);
  device_->gradient(args, stream);
  device_->enter_sampled(update, stream);
}

}  // namespace cpr
