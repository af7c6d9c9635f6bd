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

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat32:
      break;
  }
  return "float32";
}

inline DType parse_dtype(const std::string& name, const std::string& where) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw std::invalid_argument(where + "dtype: expected float32, float16, bfloat16 or float64, got " + name);
}

// Of output, gradients and per-sample weights.
inline const char* outer_dtype(const Collection& c) { return c.wide() ? "float64" : "float32"; }

// As NumPy has it: bfloat16 as its bit pattern.
inline pybind11::dtype array_dtype(DType dtype) {
  return pybind11::dtype(dtype == DType::kBFloat16 ? "uint16" : dtype_name(dtype));
}

// A NumPy array that owns `values`.
template <typename T>
pybind11::array_t<T> to_array(std::vector<T> values, std::vector<int64_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  pybind11::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return pybind11::array_t<T>(shape, owned->data(), owner);
}

}  // namespace cpr
