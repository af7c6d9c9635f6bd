// Which rows of a range were seen, a byte a row.
#pragma once

#include <cstdint>
#include <span>

namespace cpr::store {

// Marks seen[row - begin] for every one of `rows` and returns how many were not marked before. Throws
// std::out_of_range for a row outside [begin, begin + seen.size()), with nothing marked.
int64_t mark_rows(std::span<const int64_t> rows, int64_t begin, std::span<uint8_t> seen);

}  // namespace cpr::store
