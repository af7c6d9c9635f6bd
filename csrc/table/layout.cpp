#include "table/layout.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "core/hash.hpp"

namespace cpr {

namespace {

constexpr int64_t kMinSlotsForGroups = 4096;

void check_unpooled(const std::vector<TableSpec>& tables) {
  const TableSpec& first = tables.front();
  const bool unpooled = first.pooling == Pooling::kNone;
  for (const TableSpec& spec : tables) {
    if ((spec.pooling == Pooling::kNone) != unpooled) {
      throw std::invalid_argument("pooling: expected none for all tables of a collection or for no table, got both");
    }
    if (unpooled && spec.embedding_dim != first.embedding_dim) {
      throw std::invalid_argument("embedding_dim: expected one for all tables of a collection without pooling, got " +
                                  std::to_string(first.embedding_dim) + " and " + std::to_string(spec.embedding_dim));
    }
  }
}

int common_period(const std::vector<TableSpec>& tables) {
  int found = -1;
  for (const TableSpec& spec : tables) {
    if (!spec.track_ssu) continue;
    const int period = std::countr_zero(static_cast<uint64_t>(spec.ssu_period));
    if (found >= 0 && period != found) {
      throw std::invalid_argument("ssu_period: expected one period for all tables of a collection, got " +
                                  std::to_string(int64_t{1} << found) + " and " + std::to_string(spec.ssu_period));
    }
    found = period;
  }
  return std::max(found, 0);
}

}  // namespace

Layout make_layout(const std::vector<TableSpec>& tables, const std::vector<int64_t>& features) {
  check_unpooled(tables);
  Layout layout;
  layout.log2_period = common_period(tables);
  layout.unpooled = tables.front().pooling == Pooling::kNone;
  for (const TableSpec& spec : tables) {
    layout.wide = layout.wide || spec.dtype == DType::kFloat64;
    layout.pools_max = layout.pools_max || spec.pooling == Pooling::kMax;
    layout.pools_mean = layout.pools_mean || spec.pooling == Pooling::kMean;
    layout.max_dim = std::max(layout.max_dim, spec.embedding_dim);
  }
  for (const int64_t table : features) {
    const int64_t before = layout.unpooled ? 0 : layout.output_dim;
    layout.feature_column.push_back(before);
    layout.output_dim = before + tables.at(static_cast<size_t>(table)).embedding_dim;
  }
  return layout;
}

SsuView make_ssu(const TableSpec& spec, uint64_t key) {
  SsuView ssu;
  ssu.key = hash2(key, 0x55U);
  ssu.groups = kSsuGroups;
  if (!spec.track_ssu) return ssu;
  const int64_t capacity =
      std::max<int64_t>(1, static_cast<int64_t>(spec.ssu_fraction * static_cast<double>(spec.num_embeddings)));
  if (capacity < kMinSlotsForGroups) ssu.groups = 1;
  ssu.slots_per_group = static_cast<uint32_t>(capacity / ssu.groups);
  return ssu;
}

RowFormat make_format(const TableSpec& spec, StateLayout layout) {
  return {spec.embedding_dim, spec.dtype, layout.arrays * spec.embedding_dim + layout.of_row, spec.track_drift};
}

}  // namespace cpr
