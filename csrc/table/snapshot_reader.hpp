#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/select.hpp"
#include "table/staging.hpp"

namespace cpr {

// Which rows of one table a snapshot takes.
struct SelectionRequest {
  Select kind = Select::kNone;
  int64_t rows = 0;                               // kMostUsed, kMostDrifted
  std::shared_ptr<const RowMask> mask = nullptr;  // kRows
};

// Rows [begin, end) of a staging buffer, all of one table and one shard.
struct Chunk {
  StagingPtr buffer;
  int64_t shard = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Local row r lies in shard first + r * spread / rows; rows 0: all in shard 0.
struct ShardRule {
  int64_t first = 0;
  int64_t spread = 1;
  int64_t rows = 0;
  int64_t of(int64_t row) const { return first + row * spread / rows; }
};

// What a reader sees of a snapshot, wherever the tables lie: every selected row as it was at begin, in chunks.
// Threads: one reader at a time.
class SnapshotReader {
 public:
  enum class Status { kWalking, kComplete, kFailed, kCommitted, kAborted };

  virtual ~SnapshotReader() = default;
  virtual int64_t step() const = 0;
  virtual Status status() const = 0;
  virtual std::vector<int64_t> expected_rows() const = 0;
  virtual std::vector<int64_t> rows_taken() const = 0;
  virtual double stall_seconds() const = 0;
  // Starts the walk of a snapshot that was started without; no effect on any other. Throws if no thread can be started.
  // The walk gives way if the caller's thread does.
  virtual void start_walk() = 0;
  // The next sealed chunk; false when all have been handed out. Throws Error after fail or abort, Timeout when there is
  // none in time (negative: no timeout).
  virtual bool next_chunk(double timeout_seconds, Chunk* chunk) = 0;
  // What the snapshot took is dropped; every chunk must have been handed out.
  virtual void commit() = 0;
  // What the snapshot took is merged back: dirty bits, counts, list entries. Finishes the walk.
  virtual void abort() = 0;
  // False in a forked child, where threads don't exist and locks may be held for ever: leave it alone there.
  virtual bool owned_by_this_process() const = 0;
};

// Cuts a buffer into chunks of one shard each, appended to `chunks`; rows in another order than the shards' are brought
// into theirs first, in a buffer of `pool`. `row_offset`: of the table.
void split_by_shard(StagingPtr buffer, const ShardRule& shards, int64_t row_offset, StagingPool* pool,
                    std::deque<Chunk>* chunks);

}  // namespace cpr
