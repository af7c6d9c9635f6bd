#include "store/row_marks.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cpr::store {

int64_t mark_rows(std::span<const int64_t> rows, int64_t begin, int64_t end, std::span<uint8_t> seen) {
  if (rows.empty()) return 0;
  int64_t least = rows[0];
  int64_t most = rows[0];
  for (const int64_t row : rows) {
    least = std::min(least, row);
    most = std::max(most, row);
  }
  if (least < begin || most >= end) {
    throw std::out_of_range("rows: expected rows of [" + std::to_string(begin) + ", " + std::to_string(end) +
                            "), got " + std::to_string(least) + ".." + std::to_string(most));
  }
  int64_t before = 0;
  for (const int64_t row : rows) {
    const auto at = static_cast<size_t>(row - begin);
    uint8_t& byte = seen[at / 8];
    const unsigned bit = 1U << (at % 8);
    before += (byte & bit) != 0 ? 1 : 0;
    byte = static_cast<uint8_t>(byte | bit);
  }
  return static_cast<int64_t>(rows.size()) - before;
}

}  // namespace cpr::store
