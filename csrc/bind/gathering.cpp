#include "bind/gathering.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace cpr {

namespace {

constexpr double kChunkTimeoutSeconds = 0.1;

int64_t size_of(const Chunk& chunk) { return chunk.end - chunk.begin; }

struct Kind {
  size_t number;
  const char* name;
  const char* dtype;  // safetensors'
  int64_t item_size;
  std::vector<int64_t> row_shape;
  const void* (*data)(const StagingView&);
};

const char* code_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "F16";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat64:
      return "F64";
    case DType::kFloat32:
      break;
  }
  return "F32";
}

// The tensors of a table: ids, weight, state (if it has any), count.
std::vector<Kind> kinds_of(const RowFormat& format) {
  std::vector<Kind> kinds = {{0, "rows", "I64", 8, {}, [](const StagingView& v) -> const void* { return v.rows; }},
                             {1,
                              "weight",
                              code_of(format.dtype),
                              item_size(format.dtype),
                              {format.dim},
                              [](const StagingView& v) -> const void* { return v.weight; }}};
  if (format.state_size > 0) {
    std::vector<int64_t> columns;
    if (format.state_size > 1) columns.push_back(format.state_size);
    kinds.push_back({2, "state", "F32", 4, columns, [](const StagingView& v) -> const void* { return v.state; }});
  }
  kinds.push_back({3, "count", "U32", 4, {}, [](const StagingView& v) -> const void* { return v.words; }});
  return kinds;
}

int64_t row_bytes(const Kind& kind) {
  int64_t bytes = kind.item_size;
  for (const int64_t extent : kind.row_shape) bytes *= extent;
  return bytes;
}

}  // namespace

void GatheredRows::add(Chunk chunk) {
  const int table = chunk.buffer->table();
  const RowFormat& format = chunk.buffer->format();
  const StagingView& view = chunk.buffer->view();
  for (int64_t i = chunk.begin; i < chunk.end; ++i) lookups += view.words[i];
  for (const Kind& kind : kinds_of(format)) bytes += size_of(chunk) * row_bytes(kind);
  rows[table] += size_of(chunk);
  chunks.push_back(std::move(chunk));
}

std::vector<store::SegmentTensor> GatheredRows::tensors(const std::vector<std::string>& names) const {
  std::map<int, std::vector<const Chunk*>> of_table;
  for (const Chunk& chunk : chunks) of_table[chunk.buffer->table()].push_back(&chunk);
  using Place = std::pair<int64_t, size_t>;  // widest items first, then by kind, then by table
  std::vector<std::pair<Place, store::SegmentTensor>> found;
  for (const auto& [table, parts] : of_table) {
    for (const Kind& kind : kinds_of(parts.front()->buffer->format())) {
      const int64_t stride = row_bytes(kind);
      store::SegmentTensor tensor{
          names.at(static_cast<size_t>(table)) + "." + kind.name, kind.dtype, {rows.at(table)}, {}};
      tensor.shape.insert(tensor.shape.end(), kind.row_shape.begin(), kind.row_shape.end());
      for (const Chunk* chunk : parts) {
        const char* data = static_cast<const char*>(kind.data(chunk->buffer->view()));
        tensor.pieces.push_back({data + chunk->begin * stride, static_cast<size_t>(size_of(*chunk) * stride)});
      }
      found.emplace_back(Place{-kind.item_size, kind.number}, std::move(tensor));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<store::SegmentTensor> tensors;
  for (auto& entry : found) tensors.push_back(std::move(entry.second));
  return tensors;
}

Gathering::Gathering(std::shared_ptr<SnapshotReader> snapshot, int64_t max_bytes, std::vector<int64_t> shard_rows)
    : snapshot_(std::move(snapshot)), max_bytes_(max_bytes), missing_(std::move(shard_rows)), shards_(missing_.size()) {
  for (size_t shard = 0; shard < shards_.size(); ++shard) shards_[shard].shard = static_cast<int64_t>(shard);
}

GatheredRows* Gathering::largest() {
  return &*std::max_element(shards_.begin(), shards_.end(),
                            [](const GatheredRows& a, const GatheredRows& b) { return a.bytes < b.bytes; });
}

GatheredRows Gathering::take(GatheredRows* from) {
  bytes_ -= from->bytes;
  GatheredRows empty;
  empty.shard = from->shard;
  return std::exchange(*from, std::move(empty));
}

std::optional<GatheredRows> Gathering::next() {
  for (;;) {
    GatheredRows* const most = largest();
    emptying_ = emptying_ && !most->chunks.empty();
    if (bytes_ >= max_bytes_ || emptying_) return take(most);
    if (ended_) return std::nullopt;
    Chunk chunk;
    try {
      ended_ = !snapshot_->next_chunk(kChunkTimeoutSeconds, &chunk);
    } catch (const Timeout&) {
      emptying_ = true;
      continue;
    }
    if (ended_) {
      emptying_ = true;
      continue;
    }
    const auto shard = static_cast<size_t>(chunk.shard);
    if (shard >= shards_.size()) {
      throw Error("gather: expected chunks of " + std::to_string(shards_.size()) + " shards, got one of shard " +
                  std::to_string(shard));
    }
    missing_[shard] -= size_of(chunk);
    const int64_t before = shards_[shard].bytes;
    shards_[shard].add(std::move(chunk));
    bytes_ += shards_[shard].bytes - before;
    if (missing_[shard] == 0) return take(&shards_[shard]);
  }
}

}  // namespace cpr
