#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.hpp"
#include "core/views.hpp"
#include "table/memory.hpp"

namespace cpr {

// Rows, row metadata and trackers of one table.
// Threads: update units and the snapshot's walk share a table through view() and add(); everything else is called at a
// step boundary by one thread at a time (the collection's mutex).
class Table {
 public:
  Table(TableSpec spec, const OptimizerSpec& optimizer, uint64_t seed);

  const TableSpec& spec() const { return spec_; }
  int64_t num_rows() const { return spec_.num_embeddings; }
  int64_t dim() const { return spec_.embedding_dim; }
  bool has_state() const { return has_state_; }

  // Without selection rule and staging, which a snapshot adds.
  TableView view() const;

  // Weights move to memory of the caller's, kept alive by `owner`.
  void bind_weight(float* weight, std::shared_ptr<void> owner);
  std::shared_ptr<void> weight_owner() const { return weight_owner_; }

  // Initial weight and state of local rows [begin, end): a function of seed, table name and global row.
  void initialise(int64_t begin, int64_t end);

  void flip_parity() { parity_ ^= kParityBit; }
  // Count, dirty and listed bits of a local row.
  uint32_t word(int64_t row) const;
  // Replaces all but the parity bit and keeps totals and slots consistent; a row whose slot is taken isn't listed.
  void set_word(int64_t row, uint32_t word);
  // Gives a snapshot's claim on a row back: dirty again, counts added, listed again where the slot is free.
  void merge_word(int64_t row, uint32_t taken);
  void mark_all_dirty();

  void add(const TrackerDelta& delta);
  int64_t num_dirty() const { return num_dirty_.load(std::memory_order_relaxed); }
  int64_t num_listed() const { return num_listed_.load(std::memory_order_relaxed); }
  std::vector<int64_t> histogram() const;
  // The rule that takes about `rows` rows of the highest counts, and how many it will take. O(buckets).
  SelectRule most_used(int64_t rows, uint64_t sequence, int64_t* expected) const;
  std::vector<int64_t> listed_rows() const;  // global ids, ascending

  int64_t weight_bytes() const { return num_rows() * dim() * static_cast<int64_t>(sizeof(float)); }
  int64_t meta_bytes() const { return static_cast<int64_t>(meta_.size()); }
  int64_t ssu_bytes() const { return static_cast<int64_t>(slots_.size() * sizeof(uint64_t)); }

 private:
  RowMeta* meta() const { return static_cast<RowMeta*>(meta_.data()); }

  TableSpec spec_;
  bool has_state_;
  float initial_state_;
  uint64_t key_;
  float* weight_ = nullptr;
  std::shared_ptr<void> weight_owner_;
  HugeBuffer meta_;
  std::vector<uint64_t> slots_;
  SsuView ssu_;
  uint32_t parity_ = 0;
  std::atomic<int64_t> num_dirty_{0};
  std::atomic<int64_t> num_listed_{0};
  std::array<std::atomic<int64_t>, kCountBuckets> histogram_{};
};

}  // namespace cpr
