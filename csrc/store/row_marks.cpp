#include "store/row_marks.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace cpr::store {

namespace {

// Marks bits [first, last) of `seen` and returns how many were marked before.
int64_t mark_run(size_t first, size_t last, std::span<uint8_t> seen) {
  int64_t before = 0;
  for (size_t at = first; at < last;) {
    const size_t until = std::min(last, (at / 8 + 1) * 8);
    const unsigned bits = (0xffU >> (8 - (until - at))) << (at % 8);
    uint8_t& byte = seen[at / 8];
    before += std::popcount(byte & bits);
    byte = static_cast<uint8_t>(byte | bits);
    at = until;
  }
  return before;
}

}  // namespace

int64_t mark_rows(std::span<const int64_t> rows, int64_t begin, int64_t end, std::span<uint8_t> seen) {
  if (rows.empty()) return 0;
  int64_t least = rows[0];
  int64_t most = rows[0];
  bool consecutive = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    least = std::min(least, rows[i]);
    most = std::max(most, rows[i]);
    consecutive &= static_cast<uint64_t>(rows[i]) - static_cast<uint64_t>(rows[0]) == i;
  }
  if (least < begin || most >= end) {
    throw std::out_of_range("rows: expected rows of [" + std::to_string(begin) + ", " + std::to_string(end) +
                            "), got " + std::to_string(least) + ".." + std::to_string(most));
  }
  const auto count = static_cast<int64_t>(rows.size());
  if (consecutive) {
    return count - mark_run(static_cast<size_t>(least - begin), static_cast<size_t>(most - begin) + 1, seen);
  }
  int64_t before = 0;
  for (const int64_t row : rows) {
    const auto at = static_cast<size_t>(row - begin);
    uint8_t& byte = seen[at / 8];
    const unsigned bit = 1U << (at % 8);
    before += (byte & bit) != 0 ? 1 : 0;
    byte = static_cast<uint8_t>(byte | bit);
  }
  return count - before;
}

}  // namespace cpr::store
