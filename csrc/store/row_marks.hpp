// Which rows of a range were seen, a bit a row.
#pragma once

#include <cstdint>
#include <span>

namespace cpr::store {

// Marks bit row - begin of `seen` (the lowest bit of a byte first) for every one of `rows` and returns how many were
// not marked before. Throws std::out_of_range for a row outside [begin, end), with nothing marked; `seen` has a bit for
// each row of it.
int64_t mark_rows(std::span<const int64_t> rows, int64_t begin, int64_t end, std::span<uint8_t> seen);

}  // namespace cpr::store
