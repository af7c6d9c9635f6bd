#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "table/collection.hpp"

namespace cpr {

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

inline int64_t check_table(const Collection& c, int64_t table) {
  if (table < 0 || table >= c.num_tables()) {
    throw std::out_of_range("table: expected 0 <= table < " + std::to_string(c.num_tables()) + ", got " +
                            std::to_string(table));
  }
  return table;
}

// A NumPy array that owns `values`.
template <typename T>
pybind11::array_t<T> to_array(std::vector<T> values, std::vector<int64_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  pybind11::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return pybind11::array_t<T>(shape, owned->data(), owner);
}

}  // namespace cpr
