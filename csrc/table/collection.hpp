#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "cpu/kernels.hpp"
#include "table/batch.hpp"
#include "table/snapshot.hpp"
#include "table/table.hpp"

namespace cpr {

// ids feature-major; either offsets [features * batch + 1] or ids_per_bag >= 1.
struct LookupInput {
  const void* ids = nullptr;
  bool ids_are_64bit = false;
  int64_t num_ids = 0;
  const void* offsets = nullptr;
  bool offsets_are_64bit = false;
  int64_t ids_per_bag = 0;
  int64_t batch_size = 0;
  const float* per_sample_weights = nullptr;
  float* out = nullptr;  // [batch_size, output_dim]
  bool keep = true;      // for an update: draws the sampled accesses of the step
  int threads = 1;
};

struct SelectionRequest {
  Select kind = Select::kNone;
  int64_t rows = 0;  // kMostUsed
};

// Several tables that are looked up, updated and saved together.
//
// Threads: one training thread calls lookup, update, gradient, begin and what changes rows. Snapshot readers may commit
// or abort from another thread; mutex_ keeps that apart from a running update. Lookups without a concurrent update may
// run anywhere. Processes: the process that constructed the collection owns it; a forked child may only look up.
class Collection {
 public:
  Collection(std::vector<TableSpec> tables, std::vector<int64_t> features, OptimizerSpec optimizer, uint64_t seed,
             int64_t max_staging_bytes);
  ~Collection();
  Collection(const Collection&) = delete;
  Collection& operator=(const Collection&) = delete;

  int64_t num_tables() const { return static_cast<int64_t>(tables_.size()); }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t output_dim() const { return output_dim_; }
  Table& table(int64_t index) { return *tables_.at(static_cast<size_t>(index)); }
  const OptimizerSpec& optimizer() const { return optimizer_; }
  void set_learning_rate(float rate) { optimizer_.learning_rate = rate; }
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  int64_t skipped_steps() const { return skipped_steps_; }
  StagingPool& staging() { return *staging_; }

  // Checks every id and offset, then pools into out. A bad one throws (out_of_range, invalid_argument) with nothing
  // counted.
  std::shared_ptr<Batch> lookup(const LookupInput& input);
  // One optimizer step on the rows of `batch`. False and nothing changed, if the gradient isn't finite.
  bool update(Batch* batch, const float* grad, int threads, float grad_scale, const std::vector<bool>& frozen);
  // For optimizer kNone: unique local rows of one table and their summed gradients; tracks them.
  int64_t gradient(Batch* batch, const float* grad, int64_t table, std::vector<int64_t>* rows,
                   std::vector<float>* values);
  void weight_grad(Batch* batch, const float* grad, float* out, int threads);

  void mark_dirty(int64_t table, const int64_t* global_rows, int64_t n);
  void mark_all_dirty(int64_t table);
  void bind_weight(int64_t table, float* weight, std::shared_ptr<void> owner);
  // Row ids are global and were checked by check_rows.
  void load_rows(int64_t table, const int64_t* rows, int64_t n, const float* weight, const float* state, bool dirty);
  void reset_rows(int64_t table, int64_t begin, int64_t end);
  void discard_rows(int64_t table, int64_t begin, int64_t end);
  void clear_trackers(int64_t table, int64_t begin, int64_t end, bool dirty);
  void set_trackers(int64_t table, const uint32_t* words);
  // Count, dirty and listed bits of every local row, and the listed global rows, ascending.
  void read_trackers(int64_t table, uint32_t* words);
  std::vector<int64_t> sampled_rows(int64_t table);
  void check_rows(int64_t table, const int64_t* rows, int64_t n) const;

  std::shared_ptr<Snapshot> begin(const std::vector<SelectionRequest>& selections, bool clears_dirty,
                                  const std::vector<int64_t>& shard_rows, bool blocking);
  void close();

 private:
  struct Unit {
    int64_t table = 0;
    std::vector<cpu::KeySpan> spans;
    int64_t size = 0;
    bool part = false;  // other units of this step update other rows of the table
  };

  void check_owner(const char* call) const;
  void check_idle(const char* call) const;
  // The snapshot that rows written from outside may have torn, failed; nullptr if none.
  std::shared_ptr<Snapshot> fail_torn(int64_t table);
  void check_batch(const Batch& batch, const char* call) const;
  std::vector<Unit> plan_units(Batch* batch, int threads, const std::vector<bool>& frozen);
  void partition(Batch* batch, int64_t table, std::vector<cpu::KeySpan> spans, int64_t n, int threads,
                 std::vector<Unit>* units);
  TableView update_view(int64_t table);
  void reserve_staging(const Batch& batch);
  cpu::UpdateArgs update_args(Batch* batch, int64_t table, const float* grad);
  void enter_sampled(const Unit& unit, const cpu::UpdateArgs& args, const cpu::Workspace& workspace,
                     TrackerDelta* delta);
  void run_units(Batch* batch, const std::vector<Unit>& units, const float* grad, int threads, float grad_scale);
  [[noreturn]] void throw_bad_id(const LookupInput& input, int64_t feature, int64_t position) const;

  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int64_t> features_;                        // table of each feature
  std::vector<std::vector<int64_t>> features_of_table_;  // ascending
  std::vector<int64_t> feature_column_;
  int64_t output_dim_ = 0;
  OptimizerSpec optimizer_;
  uint64_t sample_key_;
  int log2_period_ = 0;
  int64_t step_ = 0;
  int64_t skipped_steps_ = 0;
  int64_t snapshots_begun_ = 0;
  std::shared_ptr<BatchPool> batches_ = std::make_shared<BatchPool>();
  std::shared_ptr<StagingPool> staging_;
  std::vector<cpu::Workspace> workspaces_;
  mutable std::mutex mutex_;
  std::shared_ptr<Snapshot> active_;
  // Whether the walk had ended when the last step began: only then are rows written from outside since then surely not
  // in it.
  bool walk_over_at_step_ = true;
  const pid_t owner_;
};

}  // namespace cpr
