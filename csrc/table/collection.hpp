#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "cpu/kernels.hpp"
#include "table/batch.hpp"
#include "table/lookup_input.hpp"
#include "table/snapshot.hpp"
#include "table/table.hpp"

namespace cpr {

// Several tables that are looked up, updated and saved together.
//
// Threads: one training thread calls lookup, update, gradient, begin and what changes rows. Snapshot readers may commit
// or abort from another thread; mutex_ keeps that apart from a running update. Lookups without a concurrent update may
// run anywhere. Processes: the process that constructed the collection owns it; a forked child may only look up.
class Collection {
 public:
  Collection(std::vector<TableSpec> tables, std::vector<int64_t> features, OptimizerSpec optimizer, uint64_t seed,
             int64_t max_staging_bytes, const std::shared_ptr<Region>& region = nullptr);
  ~Collection();
  Collection(const Collection&) = delete;
  Collection& operator=(const Collection&) = delete;

  int64_t num_tables() const { return static_cast<int64_t>(tables_.size()); }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t output_dim() const { return output_dim_; }
  // A row an id: output and gradient are [num_ids, dim], in the order of the ids.
  bool unpooled() const { return unpooled_; }
  Table& table(int64_t index) { return *tables_.at(static_cast<size_t>(index)); }
  // Whether the tables are float64: then so are output, gradients and per-sample weights.
  bool wide() const { return wide_; }
  const OptimizerSpec& optimizer() const { return optimizer_; }
  // All but the kind and the initial state may be changed between updates.
  OptimizerSpec& optimizer() { return optimizer_; }
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  int64_t skipped_steps() const { return skipped_steps_; }
  StagingPool& staging() { return *staging_; }

  // Checks every id and offset, then pools into out. A bad one throws (out_of_range, invalid_argument) with nothing
  // counted.
  std::shared_ptr<Batch> lookup(const LookupInput& input);
  // One optimizer step on the rows of `batch`. False and nothing changed, if the gradient isn't finite.
  // `multiplicity`: the accesses that each id stands for, [num_ids], at least 1; nullptr: one.
  bool update(Batch* batch, const float* grad, int threads, float grad_scale, const std::vector<bool>& frozen,
              const uint32_t* multiplicity = nullptr);
  // For optimizer kNone: unique local rows of one table and their summed gradients (float, double for float64 tables;
  // room for as many as the batch has ids of the table); tracks them. Returns their number.
  int64_t gradient(Batch* batch, const void* grad, int64_t table, int64_t* rows, void* values);
  // Ids of the batch that one table is looked up with.
  int64_t ids_of_table(const Batch& batch, int64_t table) const;
  void weight_grad(Batch* batch, const void* grad, void* out, int threads);
  // Counts and samples ids (int64 if `wide`, else int32) as an update would, without one: for rows that torch's
  // optimizer writes. A bad id throws with nothing counted.
  void track(int64_t table, const void* ids, bool ids_are_64bit, int64_t n);
  // Scales rows whose norm is above max_norm down to it, as torch's embedding_renorm_; they become dirty. Returns their
  // number. A bad id throws with nothing written.
  int64_t renormalise(int64_t table, const void* ids, bool ids_are_64bit, int64_t n, double max_norm, double norm_type);

  void mark_dirty(int64_t table, const int64_t* global_rows, int64_t n);
  void mark_all_dirty(int64_t table);
  // Marks the rows where a dense gradient [rows, dim] of `dtype` has an element other than +0; returns their number.
  int64_t mark_dirty_nonzero(int64_t table, const void* grad, DType dtype);
  void bind_weight(int64_t table, void* weight, std::shared_ptr<void> owner);
  void bind_state(int64_t table, const std::vector<StateArray>& arrays, std::shared_ptr<void> owner);
  // Row ids are global and were checked by check_rows.
  // `weight`: of the table's dtype; `state`: [n, state_size].
  void load_rows(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state, bool dirty,
                 int threads);
  // The same in blocks, from several threads, no row twice: write_rows while the lock of hold_rows is held.
  [[nodiscard]] std::unique_lock<std::mutex> hold_rows();
  void write_rows(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state, bool dirty);
  // Copies rows out, and back in as they were; trackers stay but for the dirty bit, which put_rows sets.
  void copy_rows(int64_t table, const int64_t* rows, int64_t n, void* weight, float* state, int threads);
  void put_rows(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state);
  void reset_rows(int64_t table, int64_t begin, int64_t end);
  void discard_rows(int64_t table, int64_t begin, int64_t end);
  void clear_trackers(int64_t table, int64_t begin, int64_t end, bool dirty);
  void set_trackers(int64_t table, const uint32_t* words);
  // Count, dirty and listed bits of every local row, and the listed global rows, ascending.
  void read_trackers(int64_t table, uint32_t* words);
  void set_drift(int64_t table, const float* drift);
  void read_drift(int64_t table, float* drift);
  // [rows, state_size]
  void read_state(int64_t table, float* state);
  std::vector<int64_t> sampled_rows(int64_t table);
  // A copy of the rows as last saved: as they are now, then as each snapshot hands them out. What an aborted one handed
  // out isn't known any more.
  void keep_saved(int64_t table, bool keep);
  void refresh_saved(int64_t table, int64_t begin, int64_t end);  // global rows: as they are now
  // Distance of each row from that copy; at most FLT_MAX, and that where it isn't known or isn't a number.
  void changes(int64_t table, cpu::Distance kind, float* out, int threads);
  void check_rows(int64_t table, const int64_t* rows, int64_t n) const;

  std::shared_ptr<Snapshot> begin(const std::vector<SelectionRequest>& selections, bool clears_dirty,
                                  const std::vector<ShardRule>& shards, bool blocking, bool walks);
  void close();

  // In shared memory.
  const std::shared_ptr<Region>& region() const { return region_; }
  // Goes on with the tables of a process that died: rows that it was writing become dirty, and the walk of its snapshot
  // goes on in the background. What the snapshot had taken is given back, and totals are counted, when first needed.
  void reattach();
  // Global rows that it may have written since its last commit, ascending; all if there were too many to note.
  const std::vector<int64_t>& doubtful_rows(int64_t table) const { return doubtful_.at(static_cast<size_t>(table)); }
  bool all_doubtful() const { return all_doubtful_; }
  // Totals of a table, once nothing of such a process is left.
  Table& settled_table(int64_t index) {
    settle_left();
    return table(index);
  }

 private:
  struct Unit {
    int64_t table = 0;
    std::vector<cpu::KeySpan> spans;
    int64_t size = 0;
    bool part = false;  // other units of this step update other rows of the table
  };

  void check_owner(const char* call) const;
  void check_idle(const char* call) const;
  std::unique_lock<std::mutex> lock_idle(const char* call);
  std::unique_lock<std::mutex> lock_settled();
  Arenas place(size_t weight_bytes, size_t state_bytes, size_t tracker_bytes, const std::shared_ptr<Region>& region);
  void find_left();
  void settle_left();
  void note_rows(int64_t table, const std::vector<cpu::KeySpan>& spans);
  void begin_logs(const std::vector<Snapshot::Part>& parts, bool clears_dirty);
  void end_logs();
  // The snapshot that rows written from outside may have torn, failed; nullptr if none.
  std::shared_ptr<Snapshot> fail_torn(int64_t table);
  void check_batch(const Batch& batch, const char* call) const;
  std::vector<Unit> plan_units(Batch* batch, int threads, const std::vector<bool>& frozen);
  void partition(Batch* batch, int64_t table, std::vector<cpu::KeySpan> spans, int64_t n, int threads,
                 std::vector<Unit>* units);
  int64_t max_dim() const;
  void size_buffers(const LookupInput& input, size_t tasks, BatchBuffers* buffers) const;
  cpu::LookupTask lookup_task(const LookupInput& input, int64_t feature, BatchBuffers* buffers) const;
  TableView update_view(int64_t table);
  void check_bound(const char* call) const;
  void reserve_staging(const Batch& batch);
  // Before rows of one table are written or tracked outside of an update.
  void reserve_staging(int64_t table, int64_t rows);
  cpu::UpdateArgs update_args(Batch* batch, int64_t table, const void* grad);
  // Sort keys of a table's ids, drawn for the list if `sampled`; throws for a bad id.
  std::vector<uint64_t> read_keys(int64_t table, const void* ids, bool ids_are_64bit, int64_t n, bool sampled) const;
  void enter_sampled(const Unit& unit, const cpu::UpdateArgs& args, const cpu::Workspace& workspace,
                     TrackerDelta* delta);
  void run_units(Batch* batch, const std::vector<Unit>& units, const float* grad, int threads, float grad_scale,
                 const uint32_t* multiplicity);
  void sample_repeats(Batch* batch, const uint32_t* multiplicity, int threads);

  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int64_t> features_;                        // table of each feature
  std::vector<std::vector<int64_t>> features_of_table_;  // ascending
  std::vector<int64_t> feature_column_;
  int64_t output_dim_ = 0;
  bool unpooled_ = false;
  OptimizerSpec optimizer_;
  bool wide_ = false;
  bool pools_max_ = false;
  uint64_t sample_key_;
  int log2_period_ = 0;
  int64_t step_ = 0;
  int64_t skipped_steps_ = 0;
  std::shared_ptr<Region> region_;
  CollectionBook own_book_;
  CollectionBook* book_ = &own_book_;
  SparseArea marker_;
  std::vector<std::vector<int64_t>> doubtful_;  // by table
  bool all_doubtful_ = false;
  std::atomic<bool> left_{false};  // what a process that died left has not been brought to the words
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
