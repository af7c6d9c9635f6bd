#pragma once

#include <cstdint>

#include "core/select.hpp"
#include "core/types.hpp"
#include "core/word.hpp"

// Plain views of a table's memory that kernels work on; the owners are in table/.
namespace cpr {

// The bytes of a row wherever it is copied to.
struct RowFormat {
  int64_t dim = 0;
  DType dtype = DType::kFloat32;
  int64_t state_size = 0;  // floats: the arrays' columns in order, then the metadata's value
  bool drift = false;
};

CPR_INLINE int64_t weight_bytes(const RowFormat& format) { return format.dim * item_size(format.dtype); }

// Where rows met first by the update pass are copied to; `next` is claimed atomically and never exceeds `capacity`.
struct StagingView {
  int64_t* rows = nullptr;    // global ids
  char* weight = nullptr;     // [capacity, dim]
  float* state = nullptr;     // [capacity, state_size]
  uint32_t* words = nullptr;  // word at begin
  float* drift = nullptr;     // [capacity] where it is tracked
  int64_t* next = nullptr;
  int64_t capacity = 0;
};

// Optimizer state of `columns` floats a row: the engine's, or torch's.
struct StateArray {
  float* data = nullptr;
  int64_t columns = 0;
};

// The sub-sampled used list: slots direct-mapped by row hash, each empty or with one row. A row is listed while its
// slot holds it; the bit in its word is only a hint (set when the row was sampled), so that an eviction costs no visit
// of the evicted row.
struct SsuView {
  uint32_t* slots = nullptr;  // nullptr: not tracked
  uint32_t groups = 0;        // 64, or 1 for short lists; a group's slots belong to one partition
  uint32_t slots_per_group = 0;
  uint64_t key = 0;
};

// Which accesses of one step are sampled for the list: one in 2^log2_period positions.
struct SampleRule {
  bool active = false;
  uint64_t key = 0;
  uint64_t step = 0;
  int log2_period = 0;
};

inline constexpr uint32_t kEmptySlot = ~uint32_t{0};
inline constexpr uint32_t kSsuGroups = 64;

// The rows that a snapshot in flight has taken out of the words of a table in shared memory, so that the next process
// can give them back. A row is entered before its word changes.
struct RowLogEntry {
  uint32_t row;
  uint32_t word;
  float drift;
  uint32_t tag;  // of the snapshot, written last
};

struct RowLogBook {
  uint64_t next = 0;
  uint64_t sure = 0;  // words of the entries before it have surely changed
  uint64_t lost = 0;  // there was no room: any row
};

struct RowLog {
  RowLogEntry* entries = nullptr;
  RowLogBook* book = nullptr;
  uint64_t capacity = 0;
  uint32_t tag = 0;
  uint32_t given = 0;  // bits of the word that the snapshot takes
};

struct TableView {
  void* weight = nullptr;
  char* meta = nullptr;  // of RowMeta or DriftMeta
  int meta_shift = 3;    // log2 of the bytes of a row's metadata
  StateArray arrays[kMaxStateArrays];
  int num_arrays = 0;
  RowFormat format;
  int64_t num_rows = 0;
  int64_t dim = 0;
  int64_t row_offset = 0;
  Pooling pooling = Pooling::kSum;
  bool state_of_row = false;  // the last of a row's state lies in its metadata
  bool track_dirty = false;
  bool track_mfu = false;
  bool track_drift = false;
  uint32_t parity = 0;               // of a settled row, both kinds
  uint32_t parity_bit = kParityBit;  // of the snapshot under way
  bool walking = false;              // a snapshot's walk is under way
  SelectRule rule;
  StagingView staging;
  const RowLog* log = nullptr;  // of tables in shared memory, while a snapshot is taken
  SsuView ssu;
};

CPR_INLINE RowMeta* meta_of(const TableView& t, int64_t row) {
  return reinterpret_cast<RowMeta*>(t.meta + (row << t.meta_shift));
}

// Only where the drift is tracked.
CPR_INLINE float* drift_cell(const TableView& t, int64_t row) {
  return &reinterpret_cast<DriftMeta*>(t.meta)[row].drift;
}

// `word`: the row's, read before.
CPR_INLINE float drift_of(const TableView& t, int64_t row, uint32_t word) {
  return (word & kVoidDriftBit) != 0 ? 0.0F : *drift_cell(t, row);
}

// Whether no rule that chooses rows would choose the row.
CPR_INLINE bool is_clean(const TableView& t, uint32_t word) {
  const uint32_t clean = t.track_drift ? kVoidDriftBit : word & kVoidDriftBit;
  return (word & ~kParityBits) == clean;
}

CPR_INLINE uint32_t with_parity(const TableView& t, uint32_t word) {
  return (word & ~kParityBit) | (t.parity & kParityBit);
}

CPR_INLINE float* floats_of(const TableView& t, int64_t row) { return static_cast<float*>(t.weight) + row * t.dim; }

CPR_INLINE char* weight_bytes_of(const TableView& t, int64_t row) {
  return static_cast<char*>(t.weight) + row * weight_bytes(t.format);
}

// What a unit of work changed, added to the table's totals when the unit ends.
struct TrackerDelta {
  int64_t dirty = 0;
  int64_t slots_used = 0;
  int32_t counts[kCountBuckets] = {};  // rows by bucket of their count and of their drift, more or fewer
  int32_t drifts[kDriftBuckets] = {};
};

// Multiply-shift hashing (Dietzfelbinger et al. 1997): the high bits are good.
CPR_INLINE uint64_t ssu_hash(const SsuView& ssu, uint64_t row) { return row * (ssu.key | 1) + (ssu.key << 32); }

CPR_INLINE uint32_t ssu_group(const SsuView& ssu, uint64_t hash) {
  return ssu.groups == 1 ? 0 : static_cast<uint32_t>(hash >> 58);
}

CPR_INLINE uint64_t ssu_slot(const SsuView& ssu, uint64_t hash) {
  const uint64_t within = (((hash << 6) >> 32) * ssu.slots_per_group) >> 32;
  return static_cast<uint64_t>(ssu_group(ssu, hash)) * ssu.slots_per_group + within;
}

CPR_INLINE uint32_t* ssu_slot_of(const SsuView& ssu, int64_t row) {
  return ssu.slots + ssu_slot(ssu, ssu_hash(ssu, static_cast<uint64_t>(row)));
}

CPR_INLINE bool is_listed(const SsuView& ssu, int64_t row, uint32_t word) {
  return (word & kListedBit) != 0 && load_acquire(ssu_slot_of(ssu, row)) == static_cast<uint32_t>(row);
}

// Brings the histogram and the totals from one word of a row to the next.
CPR_INLINE void account(const TableView& t, uint32_t before, uint32_t after, TrackerDelta* delta) {
  delta->dirty += static_cast<int>((after & kDirtyBit) != 0) - static_cast<int>((before & kDirtyBit) != 0);
  if (t.track_mfu) {
    --delta->counts[count_bucket(before & kCountMask)];
    ++delta->counts[count_bucket(after & kCountMask)];
  }
}

CPR_INLINE void account_drift(float before, float after, TrackerDelta* delta) {
  --delta->drifts[drift_bucket(before)];
  ++delta->drifts[drift_bucket(after)];
}

}  // namespace cpr
