#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "core/crc32c.hpp"
#include "store/segment_writer.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

struct FileType {
  std::string_view name;  // NumPy's
  std::string_view code;  // of safetensors
  int64_t size;
};

constexpr FileType kFileTypes[] = {
    {"float32", "F32", 4}, {"int64", "I64", 8},   {"uint32", "U32", 4},  {"uint8", "U8", 1},
    {"int32", "I32", 4},   {"float64", "F64", 8}, {"float16", "F16", 2}, {"bool", "BOOL", 1},
    {"int8", "I8", 1},     {"int16", "I16", 2},   {"uint16", "U16", 2},  {"uint64", "U64", 8},
};

const FileType& file_type(const std::string& name) {
  for (const FileType& type : kFileTypes) {
    if (type.name == name) return type;
  }
  throw std::invalid_argument("dtype: expected one that safetensors knows, got " + name);
}

// Product of the sizes of `shape` times the item size; refuses negative sizes and overflow.
size_t byte_size(const std::vector<int64_t>& shape, int64_t item_size) {
  int64_t total = item_size;
  for (const int64_t extent : shape) {
    if (extent < 0) throw std::invalid_argument("shape: negative size " + std::to_string(extent));
    if (__builtin_mul_overflow(total, extent, &total)) {
      throw std::invalid_argument("shape: more bytes than an address can count");
    }
  }
  return static_cast<size_t>(total);
}

store::Piece to_piece(const TensorRef& memory) {
  const size_t size = byte_size(memory.shape, file_type(memory.dtype).size);
  if (size != 0 && memory.address == 0) {
    throw std::invalid_argument("address: null for a piece that is not empty");
  }
  return {reinterpret_cast<const void*>(memory.address), size};
}

store::SegmentTensor make_tensor(std::string name, const std::string& dtype, std::vector<int64_t> shape,
                                 const std::vector<TensorRef>& pieces) {
  const FileType& type = file_type(dtype);
  store::SegmentTensor tensor{std::move(name), std::string(type.code), std::move(shape), {}};
  for (const TensorRef& memory : pieces) {
    if (memory.dtype != dtype) {
      throw std::invalid_argument("tensor " + tensor.name + ": expected pieces of dtype " + dtype + ", got " +
                                  memory.dtype);
    }
    tensor.pieces.push_back(to_piece(memory));
  }
  const size_t expected = byte_size(tensor.shape, type.size);
  if (tensor.size() != expected) {
    throw std::invalid_argument("tensor " + tensor.name + ": expected pieces of " + std::to_string(expected) +
                                " bytes in all, got " + std::to_string(tensor.size()));
  }
  return tensor;
}

uint32_t crc_of(const TensorRef& memory, uint32_t crc) {
  const store::Piece piece = to_piece(memory);
  py::gil_scoped_release release;
  return crc32c(piece.data, piece.size, crc);
}

std::pair<uint64_t, uint32_t> write_segment(const std::string& path, const std::vector<store::SegmentTensor>& tensors,
                                            const std::map<std::string, std::string>& metadata) {
  py::gil_scoped_release release;
  const store::SegmentResult result = store::write_segment(path, tensors, metadata);
  return {result.size, result.crc};
}

}  // namespace

void register_store(py::module_& module) {
  const char* level = std::getenv("CPR_ISA");
  crc32c_choose(level != nullptr && std::string_view(level) == "base");

  module.def("crc32c", &crc_of, py::arg("data"), py::arg("crc") = 0);
  module.def("crc32c_combine", &crc32c_combine, py::arg("crc_a"), py::arg("crc_b"), py::arg("length_b"));
  py::class_<store::SegmentTensor>(module, "SegmentTensor")
      .def(py::init(&make_tensor), py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("pieces"));
  module.def("write_segment", &write_segment, py::arg("path"), py::arg("tensors"), py::arg("metadata"));
}

}  // namespace cpr
