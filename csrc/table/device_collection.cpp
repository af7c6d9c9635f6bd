#include "table/device_collection.hpp"

#include <unistd.h>

#include <cstddef>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"

namespace cpr {

namespace {

// All rows of a collection are numbered through in 32 bits of a sort key.
void check_total(const std::vector<TableSpec>& specs) {
  int64_t rows = 0;
  for (const TableSpec& spec : specs) rows += spec.num_embeddings;
  if (rows > kMaxRows) {
    throw std::invalid_argument(
        "tables: expected fewer than 2^32 rows in all tables of a collection on a device, got " + std::to_string(rows));
  }
}

cuda::TableRecord make_record(const TableSpec& spec, Optimizer optimizer, uint64_t seed, int64_t first_row) {
  cuda::TableRecord record;
  record.key = table_key(seed, spec.name);
  record.first_row = first_row;
  record.scale_by_freq = spec.scale_grad_by_freq ? 1 : 0;
  TableView& v = record.view;
  const StateLayout layout = state_layout(optimizer);
  v.meta_shift = meta_shift(spec);
  v.num_arrays = layout.arrays;
  for (int a = 0; a < layout.arrays; ++a) v.arrays[a].columns = spec.embedding_dim;
  v.format = make_format(spec, layout);
  v.num_rows = spec.num_embeddings;
  v.dim = spec.embedding_dim;
  v.row_offset = spec.row_offset;
  v.pooling = spec.pooling;
  v.state_of_row = layout.of_row > 0;
  v.track_dirty = spec.track_dirty;
  v.track_mfu = spec.track_mfu;
  v.track_drift = spec.track_drift;
  v.ssu = make_ssu(spec, record.key);
  return record;
}

cuda::Settings make_settings(const OptimizerSpec& optimizer, uint32_t* failed) {
  cuda::Settings settings;
  settings.learning_rate = optimizer.learning_rate;
  settings.eps = optimizer.eps;
  settings.weight_decay = optimizer.weight_decay;
  settings.beta1 = static_cast<float>(optimizer.beta1);
  settings.beta2 = static_cast<float>(optimizer.beta2);
  settings.gain1 = static_cast<float>(1.0 - optimizer.beta1);
  settings.gain2 = static_cast<float>(1.0 - optimizer.beta2);
  settings.wide_beta1 = optimizer.beta1;
  settings.wide_beta2 = optimizer.beta2;
  settings.failed_on_host = failed;
  return settings;
}

}  // namespace

DeviceCollection::DeviceCollection(std::vector<TableSpec> tables, std::vector<int64_t> features,
                                   OptimizerSpec optimizer, uint64_t seed, std::shared_ptr<cuda::Device> device)
    : specs_(std::move(tables)),
      features_(std::move(features)),
      layout_(make_layout(specs_, features_)),
      optimizer_(optimizer),
      device_(std::move(device)),
      sample_key_(hash2(seed, 0x53U)),
      owners_(specs_.size()),
      weight_owners_(specs_.size()),
      saved_(specs_.size()),
      failed_(device_->pinned(sizeof(uint32_t))),
      owner_(getpid()) {
  check_total(specs_);
  int64_t first_row = 0;
  for (const TableSpec& spec : specs_) {
    tables_.push_back(make_record(spec, optimizer.kind, seed, first_row));
    first_row += spec.num_embeddings;
  }
}

DeviceNeeds DeviceCollection::needs(int64_t index) const {
  const TableSpec& spec = specs_.at(static_cast<size_t>(index));
  const cuda::TableRecord& record = tables_.at(static_cast<size_t>(index));
  DeviceNeeds needs;
  needs.weight = spec.num_embeddings * weight_bytes(record.view.format);
  needs.arrays = record.view.num_arrays;
  needs.array = spec.num_embeddings * spec.embedding_dim * static_cast<int64_t>(sizeof(float));
  needs.metadata = spec.num_embeddings << record.view.meta_shift;
  needs.slots = num_slots(record.view.ssu) * static_cast<int64_t>(sizeof(uint32_t));
  return needs;
}

void DeviceCollection::bind(int64_t index, const DeviceMemory& memory, std::shared_ptr<void> owner) {
  cuda::TableRecord& record = tables_.at(static_cast<size_t>(index));
  record.view.weight = memory.weight;
  weight_owners_.at(static_cast<size_t>(index)) = nullptr;
  record.view.meta = memory.metadata;
  for (int a = 0; a < record.view.num_arrays; ++a) {
    record.view.arrays[a].data = memory.arrays.at(static_cast<size_t>(a));
  }
  record.view.ssu.slots = spec(index).track_ssu ? memory.slots : nullptr;
  record.claims = memory.claims;
  owners_.at(static_cast<size_t>(index)) = std::move(owner);
}

int64_t DeviceCollection::record_bytes() const {
  return static_cast<int64_t>(sizeof(cuda::DeviceState) + specs_.size() * sizeof(cuda::TableRecord) +
                              features_.size() * sizeof(cuda::FeatureRecord));
}

cuda::TableRecord* DeviceCollection::device_tables() const {
  return reinterpret_cast<cuda::TableRecord*>(device_state() + 1);
}

const cuda::FeatureRecord* DeviceCollection::device_features() const {
  return reinterpret_cast<const cuda::FeatureRecord*>(device_tables() + specs_.size());
}

void DeviceCollection::bind_records(void* memory, std::shared_ptr<void> owner, cuda::Stream stream) {
  check_owner("bind_records");
  records_ = memory;
  records_owner_ = std::move(owner);
  cuda::DeviceState state;
  state.settings = make_settings(optimizer_, static_cast<uint32_t*>(failed_.get()));
  device_->upload(device_state(), &state, sizeof state, stream);
  for (int64_t t = 0; t < num_tables(); ++t) upload_table(t, stream);
  std::vector<cuda::FeatureRecord> features;
  for (size_t f = 0; f < features_.size(); ++f) features.push_back({features_[f], layout_.feature_column[f]});
  if (features.empty()) return;
  auto* to = const_cast<cuda::FeatureRecord*>(device_features());
  device_->upload(to, features.data(), features.size() * sizeof(cuda::FeatureRecord), stream);
}

void DeviceCollection::upload_table(int64_t index, cuda::Stream stream) {
  cuda::TableRecord* to = device_tables() + index;
  device_->upload(to, &tables_[static_cast<size_t>(index)], sizeof(cuda::TableRecord), stream);
}

void DeviceCollection::check_owner(const char* call) const {
  if (getpid() == owner_) return;
  throw ForkedProcessError(std::string(call) + ": expected process " + std::to_string(owner_) +
                           ", which made the collection, got its forked child " + std::to_string(getpid()) +
                           "; to a child the device is of no use");
}

void DeviceCollection::check_ready(const char* call) const {
  check_owner(call);
  if (records_ == nullptr) throw Error(std::string(call) + ": expected bind_records before, got no records");
  for (size_t t = 0; t < specs_.size(); ++t) {
    if (tables_[t].view.weight != nullptr) continue;
    throw Error(std::string(call) + ": table '" + specs_[t].name + "' has no memory yet: bind first");
  }
}

void DeviceCollection::initialise(bool weights, cuda::Stream stream) {
  check_ready("initialise");
  for (int64_t t = 0; t < num_tables(); ++t) {
    const cuda::TableRecord& record = tables_[static_cast<size_t>(t)];
    TableView view = record.view;
    if (!weights || spec(t).external) view.dim = 0;  // no element of a row is written
    device_->initialise({view, record.key, spec(t).init_min, spec(t).init_max, optimizer_.initial_state, record.claims},
                        stream);
  }
}

void DeviceCollection::bind_weight(int64_t index, void* weight, std::shared_ptr<void> owner, cuda::Stream stream) {
  mark_all_dirty(index, stream);  // fails a snapshot that would go on reading
  std::shared_ptr<void>& held = weight_owners_.at(static_cast<size_t>(index));
  const std::shared_ptr<void> old = std::exchange(held, std::move(owner));  // let go after the lock: it may be Python's
  const std::lock_guard<std::mutex> lock(mutex_);
  TableView& view = tables_.at(static_cast<size_t>(index)).view;
  view.weight = weight;  // alone: the rest of the record may have changed on the device
  device_->upload(&device_tables()[index].view.weight, &view.weight, sizeof view.weight, stream);
}

void DeviceCollection::set_optimizer(const OptimizerSpec& optimizer, cuda::Stream stream) {
  check_ready("set_optimizer");
  optimizer_ = optimizer;
  const cuda::Settings settings = make_settings(optimizer_, static_cast<uint32_t*>(failed_.get()));
  device_->upload(&device_state()->settings, &settings, sizeof settings, stream);
}

cuda::DeviceState DeviceCollection::read_state(cuda::Stream stream) {
  cuda::DeviceState state;
  device_->download(&state, device_state(), sizeof state, stream);
  device_->synchronize(stream);
  return state;
}

int64_t DeviceCollection::step(cuda::Stream stream) {
  check_ready("step");
  return read_state(stream).step;
}

int64_t DeviceCollection::skipped_steps(cuda::Stream stream) {
  check_ready("skipped_steps");
  return read_state(stream).skipped;
}

void DeviceCollection::set_step(int64_t step, cuda::Stream stream) {
  check_ready("set_step");
  device_->upload(&device_state()->step, &step, sizeof step, stream);
}

}  // namespace cpr
