#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.hpp"
#include "core/views.hpp"
#include "table/memory.hpp"
#include "table/region.hpp"

namespace cpr {

// What the tables of a collection share: rows, state arrays, metadata and lists.
struct Arenas {
  std::shared_ptr<Arena> weights;
  std::shared_ptr<Arena> states;
  std::shared_ptr<Arena> trackers;
  // In shared memory only:
  std::shared_ptr<Region> region;
  std::shared_ptr<Arena> books;
};

// Rows, row metadata and trackers of one table.
// Threads: update units and the snapshot's walk share a table through view() and add(); everything else is called at a
// step boundary by one thread at a time (the collection's mutex).
class Table {
 public:
  // Takes weight_bytes, state_bytes and tracker_bytes of the arenas.
  Table(TableSpec spec, const OptimizerSpec& optimizer, uint64_t seed, const Arenas& arenas);
  static size_t weight_bytes(const TableSpec& spec);  // 0 if external
  static size_t state_bytes(const TableSpec& spec, Optimizer optimizer);
  static size_t tracker_bytes(const TableSpec& spec);

  const TableSpec& spec() const { return spec_; }
  int64_t num_rows() const { return spec_.num_embeddings; }
  int64_t dim() const { return spec_.embedding_dim; }
  // Floats of optimizer state a row.
  int64_t state_size() const { return format_.state_size; }
  const RowFormat& format() const { return format_; }
  uint64_t key() const { return key_; }

  // Without selection rule and staging, which a snapshot adds.
  TableView view() const;

  // Weights move to memory of the caller's, kept alive by `owner`.
  void bind_weight(void* weight, std::shared_ptr<void> owner);
  std::shared_ptr<void> weight_owner() const { return weight_owner_; }

  // Optimizer state of the caller's, in place of what was bound before.
  void bind_state(const std::vector<StateArray>& arrays, std::shared_ptr<void> owner);
  std::shared_ptr<void> state_owner() const { return state_owner_; }

  // Initial weight and state of local rows [begin, end): a function of seed, table name and global row. Rows in memory
  // of the caller's (external) have no initial values and stay as they are.
  void initialise(int64_t begin, int64_t end);

  // The rows as last saved, null unless they are kept; see Collection::keep_saved.
  const char* saved() const { return static_cast<const char*>(saved_.data()); }
  void keep_saved(bool keep);
  void refresh_saved(int64_t begin, int64_t end);  // local rows
  void save_rows(const StagingView& rows, int64_t n);
  void forget_saved(int64_t row);

  void flip_parity(uint32_t parity_bit) { book_->parity ^= parity_bit; }
  // Whether what a process that died left of the table is to be brought to its words; see shared.cpp.
  TableBook& book() { return *book_; }
  // The rows of a snapshot are logged from now on: a `tag` that is new.
  void begin_log(uint32_t tag, uint32_t given);
  // Makes room for `rows` more entries of a log, or lets it say that rows are missing.
  void reserve_log(int which, int64_t rows);
  const RowLog* log(int which) const { return shared() ? &logs_[which] : nullptr; }
  bool shared() const { return region_ != nullptr; }
  void end_log();
  // Of a process that died: forgets entries whose words had not changed when it did.
  void check_logs(uint32_t tag);
  void merge_logs(uint32_t tag);
  // The totals of all words as they are.
  void recount(int threads);
  // Count, dirty and listed bits of a local row; this and what changes rows wants enter_deferred first.
  uint32_t word(int64_t row) const;
  // Replaces all but the parity and keeps totals and slots consistent; a row whose slot is taken isn't listed.
  // The drift becomes `drift`.
  void set_word(int64_t row, uint32_t word, float drift, TrackerDelta* delta);
  // Gives a snapshot's claim on a row back: dirty again, counts and drift added, listed again where the slot is free.
  void merge_word(int64_t row, uint32_t taken, float drift, TrackerDelta* delta);
  float drift(int64_t row) const;
  void set_drift(int64_t row, float drift, TrackerDelta* delta);
  void mark_all_dirty();

  void add(const TrackerDelta& delta);
  // Notes rows that were sampled in a step, ascending, to be entered into the list some steps at a time: then its
  // memory is visited once for all of them. Called by the one unit that updates the whole table.
  void reserve_deferred(int64_t n);
  void defer_sampled(const uint32_t* rows, int64_t n);
  // Enters what was deferred; after it the list is as if nothing had been deferred.
  void enter_deferred();
  int64_t num_dirty() const { return num_dirty_.load(std::memory_order_relaxed); }
  // At least the number of listed rows: a slot may hold a row that was saved since.
  int64_t slots_used() const { return slots_used_.load(std::memory_order_relaxed); }
  std::vector<int64_t> histogram() const;
  std::vector<int64_t> drift_histogram() const;
  // The rule that takes about `rows` rows of the highest counts or drifts (`kind`), and how many it will take.
  // O(buckets).
  SelectRule highest(Select kind, int64_t rows, uint64_t sequence, int64_t* expected) const;
  std::vector<int64_t> listed_rows() const;  // global ids, ascending

  int64_t weight_bytes() const { return num_rows() * cpr::weight_bytes(format_); }
  int64_t state_bytes() const;  // beside the metadata, the engine's own
  int64_t meta_bytes() const { return num_rows() << view().meta_shift; }
  int64_t ssu_bytes() const { return num_slots() * static_cast<int64_t>(sizeof(uint32_t)); }

 private:
  size_t defer_limit() const;
  void place_books(const Arenas& arenas);
  int64_t num_slots() const { return ssu_.slots == nullptr ? 0 : int64_t{ssu_.groups} * ssu_.slots_per_group; }

  TableSpec spec_;
  RowFormat format_;
  StateLayout layout_;
  float initial_state_;
  uint64_t key_;
  void* weight_ = nullptr;
  std::shared_ptr<void> weight_owner_;
  std::vector<StateArray> arrays_;
  std::shared_ptr<void> state_owner_;
  std::shared_ptr<Arena> trackers_;
  char* meta_ = nullptr;
  SsuView ssu_;
  HugeBuffer saved_;
  std::vector<uint32_t> deferred_own_;
  uint32_t* deferred_ = nullptr;
  size_t defer_limit_ = 0;
  TableBook own_book_;
  TableBook* book_ = &own_book_;
  std::shared_ptr<Region> region_;
  std::shared_ptr<Arena> books_;
  SparseArea shared_deferred_;
  SparseArea log_memory_[2];
  RowLog logs_[2];
  std::atomic<int64_t> num_dirty_{0};
  std::atomic<int64_t> slots_used_{0};
  std::array<std::atomic<int64_t>, kCountBuckets> counts_{};
  std::array<std::atomic<int64_t>, kDriftBuckets> drifts_{};
};

}  // namespace cpr
