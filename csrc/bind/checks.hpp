#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/tensor_ref.hpp"
#include "table/collection.hpp"

namespace cpr {

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

inline void check_threads(int threads) {
  require(threads >= 1 && threads <= kMaxThreads,
          "threads: expected 1.." + std::to_string(kMaxThreads) + ", got " + std::to_string(threads));
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

// uint32 [num_ids], at least 1 each.
inline const uint32_t* checked_multiplicity(const Batch& batch, const TensorRef& ref) {
  const auto* multiplicity = data_of<const uint32_t>(ref, "multiplicity", "uint32");
  check_shape(ref, "multiplicity", {batch.num_ids()});
  const auto* end = multiplicity + batch.num_ids();
  const auto* zero = std::find(multiplicity, end, 0U);
  require(zero == end, "multiplicity: expected at least 1, got 0 at position " + std::to_string(zero - multiplicity));
  return multiplicity;
}

// A NumPy array that owns `values`.
template <typename T>
pybind11::array_t<T> to_array(std::vector<T> values, std::vector<int64_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  pybind11::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return pybind11::array_t<T>(shape, owned->data(), owner);
}

}  // namespace cpr
