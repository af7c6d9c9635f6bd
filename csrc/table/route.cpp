// Router, and the way of a batch's ids to the shards.
#include "table/route.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "cpu/thread_pool.hpp"

namespace cpr {

namespace {

constexpr int64_t kIdsWorthAThread = 4096;

}  // namespace

Router::Router(std::vector<RouteTable> tables, std::vector<int64_t> features, int64_t shards)
    : tables_(std::move(tables)), features_(std::move(features)), features_of_table_(tables_.size()), shards_(shards) {
  for (size_t f = 0; f < features_.size(); ++f) {
    const TableSpec& spec = tables_.at(static_cast<size_t>(features_[f])).spec;
    features_of_table_[static_cast<size_t>(features_[f])].push_back(static_cast<int64_t>(f));
    feature_column_.push_back(output_dim_);
    output_dim_ += spec.embedding_dim;
  }
  for (const RouteTable& table : tables_) {
    max_dim_ = std::max(max_dim_, table.spec.embedding_dim);
    pools_max_ = pools_max_ || table.spec.pooling == Pooling::kMax;
    only_sums_ = only_sums_ && table.spec.pooling == Pooling::kSum;
  }
}

std::shared_ptr<Routed> Router::route(const LookupInput& input) {
  check_ends(input, num_features(), false);
  return std::make_shared<Routed>(shared_from_this(), input);
}

Routed::Routed(std::shared_ptr<Router> router, const LookupInput& input)
    : router_(std::move(router)),
      buffers_(router_->buffers_.take()),
      num_ids_(input.num_ids),
      batch_size_(input.batch_size),
      feature_begin_(static_cast<size_t>(router_->num_features()) + 1),
      unit_bags_(static_cast<size_t>(router_->num_features())),
      table_begin_(static_cast<size_t>(router_->num_tables()) + 1),
      sorted_(static_cast<size_t>(router_->num_tables())),
      unique_(static_cast<size_t>(router_->num_tables())),
      fetched_begin_(static_cast<size_t>(router_->num_tables()) + 1),
      shards_(static_cast<size_t>(router_->num_shards())) {
  const int threads = static_cast<int>(std::clamp<int64_t>(num_ids_ / kIdsWorthAThread, 1, input.threads));
  read(input, threads);
  split(threads);
}

Routed::~Routed() { router_->buffers_.give(std::move(buffers_)); }

int64_t Routed::feature_size(int64_t feature) const {
  return feature_begin_[static_cast<size_t>(feature) + 1] - feature_begin_[static_cast<size_t>(feature)];
}

// Checks and copies offsets and ids, and finds the unique rows, table by table.
void Routed::read(const LookupInput& in, int threads) {
  const Router& router = *router_;
  const size_t features = router.features_.size();
  const size_t tables = router.tables_.size();
  const size_t n = static_cast<size_t>(num_ids_);
  RouteBuffers& b = *buffers_;
  for (std::vector<uint64_t>* keys : {&b.keys, &b.keys_a, &b.keys_b}) keys->resize(std::max(keys->size(), n));
  b.rows.resize(std::max(b.rows.size(), n));
  b.starts.resize(n + tables);
  b.offsets.resize(features * static_cast<size_t>(batch_size_ + 1));
  for (size_t f = 0; f <= features; ++f) feature_begin_[f] = offset_at(in, static_cast<int64_t>(f) * batch_size_);
  std::vector<int64_t> bad_offset(features, -1);
  for (size_t f = 0; f < features; ++f) {  // sizes of tables are known once the features' ends are in order
    if (feature_begin_[f] > feature_begin_[f + 1] || feature_begin_[f + 1] > num_ids_) {
      std::vector<int64_t> offsets(static_cast<size_t>(batch_size_) + 1);
      const OffsetsRead read = read_offsets(in, static_cast<int64_t>(f) * batch_size_, batch_size_, offsets.data());
      throw_bad_offset(in, read.bad >= 0 ? read.bad : static_cast<int64_t>(f + 1) * batch_size_);
    }
  }
  std::vector<std::vector<cpu::KeySpan>> spans(tables);
  for (size_t t = 0; t < tables; ++t) {
    table_begin_[t + 1] = table_begin_[t];
    for (const int64_t f : router.features_of_table_[t]) {
      spans[t].push_back({b.keys.data() + feature_begin_[static_cast<size_t>(f)], feature_size(f)});
      table_begin_[t + 1] += feature_size(f);
    }
  }
  std::vector<size_t> order(tables);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto size = [&](size_t t) { return table_begin_[t + 1] - table_begin_[t]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return size(x) > size(y); });
  std::vector<int64_t> bad_position(features, -1);
  std::vector<uint8_t> unit(features, 0);
  cpu::parallel_for(static_cast<int64_t>(tables), threads, [&](int64_t index, int) {
    const size_t t = order[static_cast<size_t>(index)];
    const int64_t num_rows = router.tables_[t].spec.num_embeddings;
    for (const int64_t feature : router.features_of_table_[t]) {
      const size_t f = static_cast<size_t>(feature);
      int64_t* offsets = b.offsets.data() + f * static_cast<size_t>(batch_size_ + 1);
      const OffsetsRead read = read_offsets(in, feature * batch_size_, batch_size_, offsets);
      unit[f] = read.unit_bags ? 1 : 0;
      bad_offset[f] = read.bad;
      if (read.bad >= 0) return;
      bad_position[f] = cpu::kernels().read_ids(in.ids, in.ids_are_64bit, feature_begin_[f], feature_begin_[f + 1],
                                                num_rows, {}, b.keys.data());
      if (bad_position[f] >= 0) return;
    }
    const int64_t begin = table_begin_[t];
    cpu::DistinctRows out{b.keys_a.data() + begin,     b.keys_b.data() + begin, b.rows.data() + begin,
                          b.starts.data() + begin + t, b.keys.data(),           nullptr};
    unique_[t] = cpu::kernels().distinct(spans[t].data(), static_cast<int>(spans[t].size()), size(t), num_rows, &out);
    sorted_[t] = out.sorted;
  });
  for (size_t f = 0; f < features; ++f) {
    if (bad_offset[f] >= 0) throw_bad_offset(in, bad_offset[f]);
    if (bad_position[f] >= 0) {
      throw_bad_id(router.tables_[static_cast<size_t>(router.features_[f])].spec, in.ids, in.ids_are_64bit,
                   bad_position[f]);
    }
    unit_bags_[f] = unit[f] != 0;
    all_unit_bags_ = all_unit_bags_ && unit_bags_[f];
  }
}

// Cuts each table's unique rows where another shard begins.
void Routed::split(int threads) {
  const Router& router = *router_;
  const size_t tables = router.tables_.size();
  for (ShardRows& shard : shards_) {
    shard.counts.assign(tables, 0);
    shard.floats.assign(tables + 1, 0);
  }
  for (size_t t = 0; t < tables; ++t) {
    const uint32_t* rows = buffers_->rows.data() + table_begin_[t];
    fetched_begin_[t + 1] = fetched_begin_[t] + unique_[t] * router.tables_[t].spec.embedding_dim;
    int64_t first = 0;
    for (const Piece& piece : router.tables_[t].pieces) {
      const int64_t last = std::lower_bound(rows + first, rows + unique_[t], static_cast<uint64_t>(piece.end)) - rows;
      if (last > first) parts_.push_back({static_cast<int64_t>(t), piece.shard, first, last, 0});
      shards_[static_cast<size_t>(piece.shard)].counts[t] += last - first;
      first = last;
    }
  }
  std::vector<std::vector<int64_t>> row_begin(shards_.size(), std::vector<int64_t>(tables, 0));
  for (size_t s = 0; s < shards_.size(); ++s) {
    int64_t rows = 0;
    for (size_t t = 0; t < tables; ++t) {
      row_begin[s][t] = rows;
      rows += shards_[s].counts[t];
      shards_[s].floats[t + 1] = shards_[s].floats[t] + shards_[s].counts[t] * router.tables_[t].spec.embedding_dim;
    }
    shards_[s].rows.resize(static_cast<size_t>(rows));
    shards_[s].multiplicity.resize(static_cast<size_t>(rows));
  }
  cpu::parallel_for(static_cast<int64_t>(parts_.size()), threads, [&](int64_t index, int) {
    Part& part = parts_[static_cast<size_t>(index)];
    const size_t t = static_cast<size_t>(part.table);
    ShardRows& shard = shards_[static_cast<size_t>(part.shard)];
    part.floats = shard.floats[t];
    const std::vector<Piece>& pieces = router.tables_[t].pieces;
    const auto own = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.shard == part.shard; });
    const uint32_t* rows = buffers_->rows.data() + table_begin_[t] + part.first;
    const uint32_t* starts = buffers_->starts.data() + table_begin_[t] + t + part.first;
    const int64_t at = row_begin[static_cast<size_t>(part.shard)][t];
    int32_t* out_rows = shard.rows.data() + at;
    uint32_t* out_multiplicity = shard.multiplicity.data() + at;
    for (int64_t i = 0; i < part.last - part.first; ++i) {
      out_rows[i] = static_cast<int32_t>(static_cast<int64_t>(rows[i]) - own->begin);
      out_multiplicity[i] = starts[i + 1] - starts[i];
    }
  });
}

std::vector<int32_t> Routed::index() const {
  std::vector<int32_t> index(static_cast<size_t>(num_ids_));
  for (size_t p = 0; p < index.size(); ++p) index[p] = static_cast<int32_t>(buffers_->keys[p] >> 32);
  return index;
}

bool Routed::matches(const LookupInput& in) const {
  const Router& router = *router_;
  if (in.num_ids != num_ids_ || in.batch_size != batch_size_) return false;
  for (int64_t f = 0; f < router.num_features(); ++f) {
    const size_t i = static_cast<size_t>(f);
    const int64_t* offsets = buffers_->offsets.data() + f * (batch_size_ + 1);
    for (int64_t bag = 0; bag <= batch_size_; ++bag) {
      if (offset_at(in, f * batch_size_ + bag) != offsets[bag]) return false;
    }
    const uint32_t* rows = buffers_->rows.data() + table_begin_[static_cast<size_t>(router.features_[i])];
    for (int64_t p = feature_begin_[i]; p < feature_begin_[i + 1]; ++p) {
      const int64_t id =
          in.ids_are_64bit ? static_cast<const int64_t*>(in.ids)[p] : static_cast<const int32_t*>(in.ids)[p];
      if (id != static_cast<int64_t>(rows[buffers_->keys[static_cast<size_t>(p)] >> 32])) return false;
    }
  }
  return true;
}

}  // namespace cpr
