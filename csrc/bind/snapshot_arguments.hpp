#pragma once

#include <pybind11/pybind11.h>

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

// How long an update may wait for a snapshot's reader, seconds.
void check_max_stall_seconds(double seconds);

// The property of collections on the host and on a device.
template <typename C>
void def_max_stall_seconds(pybind11::class_<C>& c) {
  c.def_property(
      "max_stall_seconds", [](C& self) { return self.staging().max_stall_seconds(); },
      [](C& self, double seconds) {
        check_max_stall_seconds(seconds);
        self.staging().set_max_stall_seconds(seconds);
      });
}

}  // namespace cpr
