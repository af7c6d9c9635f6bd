#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "cuda/device.hpp"
#include "table/device_batch.hpp"
#include "table/layout.hpp"
#include "table/lookup_input.hpp"

namespace cpr {

// Memory of one table on the device, the caller's. `claims` has as many entries as `slots`.
struct DeviceMemory {
  void* weight = nullptr;
  std::vector<float*> arrays;
  char* metadata = nullptr;
  uint32_t* slots = nullptr;
  uint32_t* claims = nullptr;
};

// Bytes of it; of each of `arrays` arrays of optimizer state.
struct DeviceNeeds {
  int64_t weight = 0;
  int arrays = 0;
  int64_t array = 0;
  int64_t metadata = 0;
  int64_t slots = 0;  // of slots and claims each
};

// What `Collection` is, with its tables in memory of a device: the same rows, state, words and outputs to the bit. All
// device memory is the caller's and bound by address; it stays valid until its owner is let go. Calls give work to the
// caller's stream and return. A bad id or offset makes its bag's output NaN, and updates do nothing until the error is
// raised: by the next call, or by synchronize. One training thread; mutex_ keeps a snapshot's reader apart.
class DeviceCollection {
 public:
  DeviceCollection(std::vector<TableSpec> tables, std::vector<int64_t> features, OptimizerSpec optimizer, uint64_t seed,
                   std::shared_ptr<cuda::Device> device);

  int64_t num_tables() const { return static_cast<int64_t>(specs_.size()); }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  const TableSpec& spec(int64_t table) const { return specs_.at(static_cast<size_t>(table)); }
  const Layout& layout() const { return layout_; }
  const OptimizerSpec& optimizer() const { return optimizer_; }
  cuda::Device& device() { return *device_; }

  DeviceNeeds needs(int64_t table) const;
  void bind(int64_t table, const DeviceMemory& memory, std::shared_ptr<void> owner);
  // Device memory for the tables' views, state and settings. Bound before bind; its first contents are written then.
  int64_t record_bytes() const;
  void bind_records(void* memory, std::shared_ptr<void> owner, cuda::Stream stream);
  // Initial rows, state and trackers of all tables: those of Collection.
  void initialise(cuda::Stream stream);

  // All but the kind and the initial state may be changed between updates.
  void set_optimizer(const OptimizerSpec& optimizer, cuda::Stream stream);
  // Optimizer steps done and skipped. These wait for the stream.
  int64_t step(cuda::Stream stream);
  int64_t skipped_steps(cuda::Stream stream);
  void set_step(int64_t step, cuda::Stream stream);

  // Bytes that a kept batch takes.
  int64_t batch_bytes(int64_t num_ids, int64_t batch_size, bool weighted) const;
  // `memory`: batch_bytes of it, aligned to 16 bytes, if in.keep; then a batch is returned. `in.threads` isn't used.
  std::shared_ptr<DeviceBatch> lookup(const LookupInput& in, void* memory, std::shared_ptr<void> owner,
                                      cuda::Stream stream);

  // d loss / d per-sample weight of each id of a batch with weights: float, double for float64 tables.
  void weight_grad(const DeviceBatch& batch, const void* grad, void* out, cuda::Stream stream);

  // Bytes of workspace of an update, free again when its work has ended.
  int64_t update_bytes(int64_t num_ids) const;
  // One optimizer step on the batch's rows, tracked. A gradient [batch, output_dim] that isn't finite skips the step.
  void update(DeviceBatch* batch, const float* grad, float grad_scale, const std::vector<bool>& frozen, void* memory,
              cuda::Stream stream);

  // Raises what a bad id or offset left, and forgets it; `call`: who asks. Waits for the stream only if there is one.
  void raise_errors(const char* call, cuda::Stream stream);
  void synchronize(cuda::Stream stream);

  // Count, dirty and listed bits of every local row, as Collection::read_trackers. Waits for the stream.
  void read_trackers(int64_t table, uint32_t* words, cuda::Stream stream);

 private:
  struct Workspace;

  const cuda::TableRecord* device_tables() const;
  const cuda::FeatureRecord* device_features() const;
  cuda::DeviceState* device_state() const { return static_cast<cuda::DeviceState*>(records_); }
  void check_ready(const char* call) const;
  void upload_table(int64_t table, cuda::Stream stream);
  void upload_settings(cuda::Stream stream);
  cuda::DeviceState read_state(cuda::Stream stream);
  cuda::BatchView place_batch(int64_t num_ids, int64_t batch_size, bool weighted, void* memory, int64_t* bytes) const;
  Workspace place_workspace(int64_t num_ids, void* memory) const;
  void check_batch(const DeviceBatch& batch, const char* call) const;
  void freeze(const std::vector<bool>& frozen, cuda::Stream stream);
  int row_bits() const;
  [[noreturn]] void throw_error(const cuda::DeviceState& state, const char* call) const;

  const std::vector<TableSpec> specs_;
  const std::vector<int64_t> features_;
  const Layout layout_;
  OptimizerSpec optimizer_;
  const std::shared_ptr<cuda::Device> device_;
  const uint64_t sample_key_;
  std::vector<cuda::TableRecord> tables_;  // as on the device
  std::vector<std::shared_ptr<void>> owners_;
  void* records_ = nullptr;
  std::shared_ptr<void> records_owner_;
  const std::shared_ptr<void> failed_;  // uint32_t, pinned
  std::mutex mutex_;
};

}  // namespace cpr
