// What one segment is made of: rows of a shard, gathered from the chunks of a snapshot.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/segment_writer.hpp"
#include "table/snapshot_reader.hpp"

namespace cpr {

// Rows of one shard, of any tables. Their staging memory is held until `chunks` is emptied.
struct GatheredRows {
  int64_t shard = 0;
  int64_t bytes = 0;            // of ids, weights, state and counts
  int64_t lookups = 0;          // sum of the counts
  std::map<int, int64_t> rows;  // of each table, by its number
  std::vector<Chunk> chunks;

  void add(Chunk chunk);
  // The tensors of a segment (docs/format.md), the widest items first; `names[t]`: of table t. They point to the
  // chunks.
  std::vector<store::SegmentTensor> tensors(const std::vector<std::string>& names) const;
};

// Takes a snapshot's chunks and hands them out shard by shard. One thread at a time, the snapshot's reader.
class Gathering {
 public:
  // `max_bytes`: gathered over all shards; beyond it the shard that holds most is handed out. `shard_rows` [shards]: a
  // shard is handed out when it has as many rows (negative: unknown).
  Gathering(std::shared_ptr<SnapshotReader> snapshot, int64_t max_bytes, std::vector<int64_t> shard_rows);

  // The rows of the next segment, none after the last. When no chunk comes for a while, what is gathered is handed out,
  // so that the walk gets its memory back. Throws what Snapshot::next_chunk throws.
  std::optional<GatheredRows> next();

 private:
  GatheredRows* largest();
  GatheredRows take(GatheredRows* from);

  const std::shared_ptr<SnapshotReader> snapshot_;
  const int64_t max_bytes_;
  std::vector<int64_t> missing_;  // rows to come; negative: unknown
  std::vector<GatheredRows> shards_;
  int64_t bytes_ = 0;
  bool emptying_ = false;  // all that is gathered is to be handed out
  bool ended_ = false;
};

}  // namespace cpr
