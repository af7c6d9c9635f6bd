#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace cpr {

// Memory of the caller's: (address, shape, dtype name), made by cpr_native._tensor from contiguous CPU tensors and
// arrays.
struct TensorRef {
  uintptr_t address = 0;
  std::vector<int64_t> shape;
  std::string dtype;

  int64_t size() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
};

inline std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

inline void check_shape(const TensorRef& ref, const char* name, const std::vector<int64_t>& expected) {
  if (ref.shape != expected) {
    throw std::invalid_argument(std::string(name) + ": expected shape " + describe(expected) + ", got " +
                                describe(ref.shape));
  }
}

template <typename T>
T* data_of(const TensorRef& ref, const char* name, const char* dtype) {
  if (ref.dtype != dtype) {
    throw pybind11::type_error(std::string(name) + ": expected dtype " + dtype + ", got " + ref.dtype);
  }
  return reinterpret_cast<T*>(ref.address);
}

// `expected`: the name of a dtype.
inline void* data_as(const TensorRef& ref, const char* name, const std::string& expected) {
  return data_of<void>(ref, name, expected.c_str());
}

// int32 or int64.
inline bool is_64bit(const TensorRef& ref, const char* name) {
  if (ref.dtype != "int64" && ref.dtype != "int32") {
    throw pybind11::type_error(std::string(name) + ": expected dtype int32 or int64, got " + ref.dtype);
  }
  return ref.dtype == "int64";
}

}  // namespace cpr

namespace pybind11::detail {

template <>
struct type_caster<cpr::TensorRef> {
  PYBIND11_TYPE_CASTER(cpr::TensorRef, const_name("tuple[int, tuple[int, ...], str]"));

  bool load(handle source, bool) {
    if (!isinstance<tuple>(source)) return false;
    const auto parts = reinterpret_borrow<tuple>(source);
    if (parts.size() != 3 || !isinstance<tuple>(parts[1]) || !isinstance<str>(parts[2])) return false;
    value.address = parts[0].cast<uintptr_t>();
    value.shape.clear();
    for (const handle extent : reinterpret_borrow<tuple>(parts[1])) value.shape.push_back(extent.cast<int64_t>());
    value.dtype = parts[2].cast<std::string>();
    return true;
  }
};

}  // namespace pybind11::detail
