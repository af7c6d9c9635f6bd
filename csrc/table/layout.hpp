#pragma once

#include <cstdint>
#include <vector>

#include "core/types.hpp"
#include "core/views.hpp"

namespace cpr {

// How the tables of a collection, of whatever engine, make up its output.
struct Layout {
  std::vector<int64_t> feature_column;  // first column of each feature
  int64_t output_dim = 0;
  int64_t max_dim = 0;
  bool unpooled = false;   // a row an id: output and gradient are [num_ids, dim]
  bool wide = false;       // float64 tables
  bool pools_max = false;  // any table does
  bool pools_mean = false;
  int log2_period = 0;  // of the sampled list
};

// Throws std::invalid_argument for tables that don't go together. `features`: the table of each.
Layout make_layout(const std::vector<TableSpec>& tables, const std::vector<int64_t>& features);

// The sampled list of a table, without memory; `key`: table_key.
SsuView make_ssu(const TableSpec& spec, uint64_t key);
RowFormat make_format(const TableSpec& spec, StateLayout layout);
inline int meta_shift(const TableSpec& spec) { return spec.track_drift ? 4 : 3; }
inline int64_t num_slots(const SsuView& ssu) { return int64_t{ssu.groups} * ssu.slots_per_group; }

}  // namespace cpr
