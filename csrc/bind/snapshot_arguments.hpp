#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "core/types.hpp"
#include "table/snapshot_reader.hpp"

namespace cpr {

// Rows per shard, or the first shard and how many have the rows of the table between them.
using ShardRows = std::variant<int64_t, std::pair<int64_t, int64_t>>;

// Arguments of `begin`, checked; all throw std::invalid_argument.
void check_selections(const std::vector<const TableSpec*>& tables, const std::vector<SelectionRequest>& selections,
                      bool blocking, bool walk);
// None for none given.
std::vector<ShardRule> shard_rules(const std::vector<const TableSpec*>& tables, const std::vector<ShardRows>& given);

}  // namespace cpr
