#include "bind/snapshot_arguments.hpp"

#include <string>

#include "bind/checks.hpp"

namespace cpr {
namespace {

constexpr double kLongestStall = 1e9;  // seconds; clocks count nanoseconds

ShardRule shard_rule(const ShardRows& given, int64_t num_rows) {
  if (const int64_t* rows = std::get_if<int64_t>(&given)) {
    require(*rows >= 1, "shard_rows: expected at least 1, got " + std::to_string(*rows));
    return {0, 1, *rows};
  }
  const auto [first, spread] = std::get<std::pair<int64_t, int64_t>>(given);
  require(first >= 0 && spread >= 1 && spread <= num_rows,
          "shard_rows: expected a first shard of at least 0 and 1 to " + std::to_string(num_rows) + " shards, got (" +
              std::to_string(first) + ", " + std::to_string(spread) + ")");
  return {first, spread, num_rows};
}

}  // namespace

void check_max_stall_seconds(double seconds) {
  require(seconds >= 0.0 && seconds <= kLongestStall,
          "max_stall_seconds: expected 0 to 1e9, got " + std::to_string(seconds));
}

void check_selections(const std::vector<const TableSpec*>& tables, const std::vector<SelectionRequest>& selections,
                      bool blocking, bool walk) {
  require(walk || !blocking, "walk: expected True for a blocking snapshot, which is copied at once");
  require(selections.size() == tables.size(), "selections: expected one for each of " + std::to_string(tables.size()) +
                                                  " tables, got " + std::to_string(selections.size()));
  for (size_t t = 0; t < tables.size(); ++t) {
    const TableSpec& spec = *tables[t];
    const Select kind = selections[t].kind;
    require((kind != Select::kDirty || spec.track_dirty) && (kind != Select::kMostUsed || spec.track_mfu) &&
                (kind != Select::kSampled || spec.track_ssu) && (kind != Select::kMostDrifted || spec.track_drift),
            "selections: table '" + spec.name + "' doesn't track what its selection asks for");
    require(kind != Select::kRows || selections[t].mask->num_rows == spec.num_embeddings,
            "selections: mask of table '" + spec.name + "': expected [" + std::to_string(spec.num_embeddings) +
                "], got [" + (kind == Select::kRows ? std::to_string(selections[t].mask->num_rows) : "") + "]");
  }
}

std::vector<ShardRule> shard_rules(const std::vector<const TableSpec*>& tables, const std::vector<ShardRows>& given) {
  require(given.empty() || given.size() == tables.size(), "shard_rows: expected none or one for each of " +
                                                              std::to_string(tables.size()) + " tables, got " +
                                                              std::to_string(given.size()));
  std::vector<ShardRule> shards;
  for (const ShardRows& rows : given) shards.push_back(shard_rule(rows, tables[shards.size()]->num_embeddings));
  return shards;
}

}  // namespace cpr
