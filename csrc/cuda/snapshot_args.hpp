#pragma once

#include <cstdint>

#include "core/select.hpp"
#include "core/views.hpp"
#include "cuda/args.hpp"
#include "cuda/touched_area.hpp"

// What the kernels of snapshots are given. A snapshot goes over the rows of all tables in tiles of one table each,
// piece by piece; a piece is the records of as many tiles as its memory holds. Rows that an update meets before their
// tile's turn are recorded in a TouchedArea.
namespace cpr::cuda {

// Copies of rows are records: the head, the weight, the state. Those of a TouchedArea lie one after the other, each
// part of them a multiple of 16 bytes; those of a piece in blocks, see PieceBlocks.
struct alignas(16) RecordHead {
  uint32_t row;  // local
  uint32_t table;
  uint32_t word;  // at begin, listed only if the row really was
  float drift;
};

CPR_INLINE int64_t rounded_to_16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

CPR_INLINE int64_t record_bytes(const RowFormat& format) {
  return static_cast<int64_t>(sizeof(RecordHead)) + rounded_to_16(weight_bytes(format)) +
         rounded_to_16(format.state_size * static_cast<int64_t>(sizeof(float)));
}

// Where a table's `n` records of a piece lie, in bytes: heads, weights and state, each tightly packed. They take
// n * record_bytes at most.
struct PieceBlocks {
  int64_t heads;
  int64_t weights;
  int64_t states;
};

CPR_INLINE PieceBlocks piece_blocks(const RowFormat& format, int64_t begin, int64_t n) {
  const int64_t weights = begin + n * static_cast<int64_t>(sizeof(RecordHead));
  return {begin, weights, weights + rounded_to_16(n * weight_bytes(format))};
}

// What a piece took, in device memory.
struct PieceHead {
  int64_t begin = 0;  // tiles
  int64_t end = 0;
  uint64_t bytes = 0;
};

// Rows of a table by bucket of count and of drift, dirty and listed ones.
inline constexpr int kTallyDrifts = kCountBuckets;
inline constexpr int kTallyDirty = kCountBuckets + kDriftBuckets;
inline constexpr int kTallyListed = kTallyDirty + 1;
inline constexpr int kTallySize = kTallyDirty + 2;

// What is asked for of a table.
struct TableRequest {
  SelectRule rule;
  int64_t quota = 0;  // rows that kMostUsed and kMostDrifted take
};

// In order of one stream: tally and reduce (where a rule asks for the highest), arm; then for each piece count, the
// library's scan, place, take, gather. open: updates record rows in other memory. disarm: the rest is taken by nobody.
enum class SnapshotStep { kTally, kReduce, kArm, kDisarm, kOpen, kCount, kPlace, kTake, kGather };

struct SnapshotArgs {
  SnapshotStep step = SnapshotStep::kTally;
  TableRecord* tables = nullptr;
  int64_t num_tables = 0;
  const int64_t* first_tile = nullptr;  // [tables + 1]
  int64_t tile_rows = 0;
  // kTally, kReduce: of tables [first_table, end_table).
  int64_t first_table = 0;
  int64_t end_table = 0;
  uint32_t* partial = nullptr;  // [copies, tables, kTallySize], zeros before: few groups add to one number
  int64_t copies = 1;
  int64_t* tallies = nullptr;  // [tables, kTallySize]
  // kArm
  const TableRequest* requests = nullptr;  // [tables]
  const int64_t* steps_done = nullptr;     // of the optimizer
  int64_t* begun_after = nullptr;          // steps done when the snapshot began
  int64_t* expected = nullptr;             // [tables]: rows that will be taken; written by kArm and the first piece
  // A piece
  bool first = false;
  bool whole = false;               // all tiles are counted
  bool advances = true;             // else it only counts
  uint32_t* counts = nullptr;       // [tiles + 1]: rows to be taken, or more where they were counted before; the last 0
  const uint32_t* sums = nullptr;   // [tiles + 1]: exclusive sums of counts
  uint64_t* table_bytes = nullptr;  // [tables]: bytes of the records of the tables before, from the cursor on
  int64_t* cursor = nullptr;        // first tile whose turn has not come
  int64_t* limit = nullptr;         // tiles from the cursor to it are counted anew for the next piece
  PieceHead* piece = nullptr;
  int64_t* piece_records = nullptr;  // [tables]: of the piece
  char* records = nullptr;           // of a piece, or of updates from kArm or kOpen on
  uint64_t capacity = 0;
  TouchedArea* area = nullptr;  // kArm, kOpen
};

}  // namespace cpr::cuda
