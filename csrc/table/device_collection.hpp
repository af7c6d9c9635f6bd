#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "cpu/kernels.hpp"
#include "cuda/device.hpp"
#include "table/device_batch.hpp"
#include "table/device_snapshot.hpp"
#include "table/device_staging.hpp"
#include "table/layout.hpp"
#include "table/lookup_input.hpp"
#include "table/snapshot_reader.hpp"

namespace cpr {

class DeviceLoader;

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
// raised: by the next call, or by synchronize. One training thread; mutex_ keeps a snapshot's reader apart. Processes:
// the one that made it; to a forked child the device is of no use.
class DeviceCollection {
 public:
  DeviceCollection(std::vector<TableSpec> tables, std::vector<int64_t> features, OptimizerSpec optimizer, uint64_t seed,
                   std::shared_ptr<cuda::Device> device);
  ~DeviceCollection();
  DeviceCollection(const DeviceCollection&) = delete;
  DeviceCollection& operator=(const DeviceCollection&) = delete;

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
  // Initial state and trackers of all tables, with `weights` rows too: those of Collection.
  void initialise(bool weights, cuda::Stream stream);
  // As Collection's, in memory of the device; before it returns only the stream still uses the old memory.
  void bind_weight(int64_t table, void* weight, std::shared_ptr<void> owner, cuda::Stream stream);

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

  // For optimizer kNone: unique local rows of one table, ascending, and their summed gradients, as Collection's, all in
  // memory of the device with room for as many as the batch has ids; `count`: their number. Tracks them. `memory`:
  // gradient_bytes of workspace.
  int64_t gradient_bytes(int64_t num_ids) const;
  void gradient(DeviceBatch* batch, const void* grad, int64_t table, int64_t* rows, void* values, int64_t* count,
                void* memory, cuda::Stream stream);

  // As Collection's, of ids on the device; a bad one is raised later, with nothing counted or written. `memory`:
  // ids_bytes of workspace. `norm_type`: 1, 2, or 0 for the largest; `count`, on the device: rows that were scaled.
  int64_t ids_bytes(int64_t num_ids) const;
  void track(int64_t table, const void* ids, bool ids_are_64bit, int64_t num_ids, void* memory, cuda::Stream stream);
  void renormalise(int64_t table, const void* ids, bool ids_are_64bit, int64_t num_ids, double max_norm, int norm_type,
                   int64_t* count, void* memory, cuda::Stream stream);

  // Raises what a bad id or offset left, and forgets it; `call`: who asks. Waits for the stream only if there is one.
  void raise_errors(const char* call, cuda::Stream stream);
  void synchronize(cuda::Stream stream);

  // What follows needs memory for snapshots and for what crosses to the host: snapshot_bytes of it, aligned to 16
  // bytes.
  int64_t snapshot_bytes(int64_t max_staging_bytes) const;
  void bind_snapshot(void* memory, int64_t max_staging_bytes, std::shared_ptr<void> owner, cuda::Stream stream);
  StagingPool& staging() const {
    check_scratch("staging");
    return *pool_;
  }

  // As Collection's of these names; memory of rows, weights, states, words and drifts is the host's. What reads waits
  // for the stream.
  void load_rows(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state, bool dirty,
                 cuda::Stream stream);
  // The lock that load_rows takes, for who writes rows itself; throws what load_rows throws without one.
  [[nodiscard]] std::unique_lock<std::mutex> hold_rows(const char* call);
  void put_rows(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state,
                cuda::Stream stream);
  void copy_rows(int64_t table, const int64_t* rows, int64_t n, void* weight, float* state, cuda::Stream stream);
  const RowFormat& format(int64_t table) const { return tables_.at(static_cast<size_t>(table)).view.format; }
  // Floats of optimizer state a row.
  int64_t state_columns(int64_t table) const { return format(table).state_size; }
  void read_row_state(int64_t table, float* state, cuda::Stream stream);
  void reset_rows(int64_t table, int64_t begin, int64_t end, cuda::Stream stream);
  void discard_rows(int64_t table, int64_t begin, int64_t end, cuda::Stream stream);
  void clear_trackers(int64_t table, int64_t begin, int64_t end, bool dirty, cuda::Stream stream);
  void set_trackers(int64_t table, const uint32_t* words, cuda::Stream stream);
  void read_trackers(int64_t table, uint32_t* words, cuda::Stream stream);
  void set_drift(int64_t table, const float* drift, cuda::Stream stream);
  void read_drift(int64_t table, float* drift, cuda::Stream stream);
  void mark_dirty(int64_t table, const int64_t* rows, int64_t n, cuda::Stream stream);
  void mark_all_dirty(int64_t table, cuda::Stream stream);
  // Counted when asked for: no totals are kept on the device.
  std::vector<int64_t> histogram(int64_t table, cuda::Stream stream);
  std::vector<int64_t> drift_histogram(int64_t table, cuda::Stream stream);
  int64_t num_dirty(int64_t table, cuda::Stream stream);
  std::vector<int64_t> sampled_rows(int64_t table, cuda::Stream stream);

  // As Collection's of these names; the copies lie in memory of the host. What reads waits for the stream.
  void keep_saved(int64_t table, bool keep, cuda::Stream stream);
  void refresh_saved(int64_t table, int64_t begin, int64_t end, cuda::Stream stream);
  void changes(int64_t table, cpu::Distance kind, float* out, int threads, cuda::Stream stream);
  bool keeps_saved(int64_t table) const;
  int64_t saved_bytes() const;

  // As Collection::begin; gives its work to the stream and waits for nothing unless `blocking`.
  std::shared_ptr<DeviceSnapshot> begin(const std::vector<SelectionRequest>& selections, bool clears_dirty,
                                        const std::vector<ShardRule>& shards, bool blocking, bool walks,
                                        cuda::Stream stream);
  // update calls it; whoever replays a captured update of `num_ids` ids calls it before. See DeviceSnapshot.
  void prepare_step(int64_t num_ids, cuda::Stream stream);
  void close();

 private:
  friend class DeviceLoader;
  struct Workspace;
  struct UniqueSpace;

  cuda::TableRecord* device_tables() const;
  const cuda::FeatureRecord* device_features() const;
  cuda::DeviceState* device_state() const { return static_cast<cuda::DeviceState*>(records_); }
  void check_owner(const char* call) const;
  void check_ready(const char* call) const;
  void check_scratch(const char* call) const;
  void check_rows(int64_t table, const int64_t* rows, int64_t n) const;
  std::unique_lock<std::mutex> lock_idle(const char* call);
  int64_t make_room(int64_t num_ids, bool in_parts, cuda::Stream stream);
  cuda::UpdateArgs update_args(const DeviceBatch& batch, const float* grad, float grad_scale,
                               const Workspace& workspace) const;
  void launch_windows(void (cuda::Device::*kernel)(const cuda::UpdateArgs&, cuda::Stream), cuda::UpdateArgs args,
                      int64_t room, cuda::Stream stream);
  void fail_torn(int64_t table);
  cuda::RowArgs row_args(cuda::RowStep step, int64_t table) const;
  template <typename Body>
  void for_each_block(int64_t n, int64_t bytes, const Body& body);
  void range_step(cuda::RowArgs args, int64_t begin, int64_t end, cuda::Stream stream);
  template <typename T>
  void write_items(cuda::RowArgs args, T* cuda::RowArgs::* member, const T* items, int64_t n, cuda::Stream stream);
  template <typename T>
  void read_items(cuda::RowArgs args, T* cuda::RowArgs::* member, int64_t columns, T* items, int64_t n,
                  cuda::Stream stream);
  void put_items(cuda::RowArgs args, int64_t table, const int64_t* rows, int64_t n, const void* weight,
                 const float* state, cuda::Stream stream);
  void write_rows(cuda::RowStep step, int64_t table, const int64_t* rows, int64_t n, const void* weight,
                  const float* state, bool dirty, cuda::Stream stream);
  std::vector<int64_t> tally(int64_t table, cuda::Stream stream);
  void upload_table(int64_t table, cuda::Stream stream);
  void read_weights(int64_t table, int64_t begin, int64_t n, void* to, cuda::Stream stream);
  void upload_settings(cuda::Stream stream);
  cuda::DeviceState read_state(cuda::Stream stream);
  cuda::BatchView place_batch(int64_t num_ids, int64_t batch_size, bool weighted, void* memory, int64_t* bytes) const;
  Workspace place_workspace(int64_t num_ids, void* memory) const;
  UniqueSpace place_unique(int64_t num_ids, bool sums, void* memory) const;
  cuda::UniqueArgs unique_args(int64_t table, int64_t num_ids) const;
  void find_unique(const uint64_t* keys, uint64_t* sorted, uint32_t* starts, uint32_t* unique, int64_t num_ids,
                   void* seam, cuda::Stream stream);
  void enter_unique(cuda::UniqueArgs args, cuda::Stream stream);
  cuda::UniqueArgs read_unique(int64_t table, const void* ids, bool ids_are_64bit, int64_t num_ids, bool samples,
                               void* memory, cuda::Stream stream);
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
  std::vector<std::shared_ptr<void>> weight_owners_;  // of weights that bind_weight named
  void* records_ = nullptr;
  std::shared_ptr<void> records_owner_;
  std::vector<HugeBuffer> saved_;       // a table's rows as last saved, in memory of the host
  const std::shared_ptr<void> failed_;  // uint32_t, pinned
  std::unique_ptr<DeviceStaging> staging_;
  std::shared_ptr<StagingPool> pool_;
  std::mutex mutex_;
  std::shared_ptr<DeviceSnapshot> active_;
  uint64_t snapshots_begun_ = 0;
  const pid_t owner_;
};

}  // namespace cpr
