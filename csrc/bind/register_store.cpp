#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/checks.hpp"
#include "bind/python_system.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "core/crc32c.hpp"
#include "store/row_marks.hpp"
#include "store/segment_reader.hpp"
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
    {"float32", "F32", 4}, {"int64", "I64", 8},   {"uint32", "U32", 4},    {"uint8", "U8", 1}, {"int32", "I32", 4},
    {"float64", "F64", 8}, {"float16", "F16", 2}, {"bool", "BOOL", 1},     {"int8", "I8", 1},  {"int16", "I16", 2},
    {"uint16", "U16", 2},  {"uint64", "U64", 8},  {"bfloat16", "BF16", 2},
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

std::unique_ptr<store::SegmentFile> create_segment(const std::string& path,
                                                   const std::vector<store::SegmentTensor>& tensors,
                                                   const std::map<std::string, std::string>& metadata,
                                                   const py::object& system) {
  store::SystemPtr calls = system_of(system);
  const py::gil_scoped_release release;
  return std::make_unique<store::SegmentFile>(path, tensors, metadata, std::move(calls));
}

using SectionSpec = std::tuple<int, uint64_t, uint64_t, std::optional<TensorRef>>;

std::vector<int64_t> read_sections(const std::vector<SectionSpec>& specs, int threads, const py::object& system) {
  check_threads(threads);
  std::vector<store::Section> sections;
  for (const auto& [fd, offset, size, memory] : specs) {
    if (memory.has_value() && to_piece(*memory).size != size) {
      throw std::invalid_argument("section at " + std::to_string(offset) + ": expected memory of " +
                                  std::to_string(size) + " bytes, got " + std::to_string(to_piece(*memory).size));
    }
    sections.push_back({fd, offset, size, memory.has_value() ? reinterpret_cast<void*>(memory->address) : nullptr});
  }
  const store::SystemPtr calls = system_of(system);
  const py::gil_scoped_release release;
  return store::read_sections(sections, threads, calls.get());
}

int64_t mark_rows(const TensorRef& rows, int64_t begin, int64_t end, const TensorRef& seen) {
  check_shape(rows, "rows", {rows.size()});
  require(begin <= end,
          "range: expected begin <= end, got [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  check_shape(seen, "seen", {(end - begin + 7) / 8});
  const auto* ids = data_of<const int64_t>(rows, "rows", "int64");
  auto* marks = data_of<uint8_t>(seen, "seen", "uint8");
  const py::gil_scoped_release release;
  return store::mark_rows({ids, static_cast<size_t>(rows.size())}, begin, end,
                          {marks, static_cast<size_t>(seen.size())});
}

}  // namespace

void register_store(py::module_& module) {
  const char* level = std::getenv("CPR_ISA");
  const std::string_view chosen = level == nullptr ? "" : level;
  crc32c_choose(chosen == "base", chosen != "avx2");

  module.def("crc32c", &crc_of, py::arg("data"), py::arg("crc") = 0);
  module.def("crc32c_combine", &crc32c_combine, py::arg("crc_a"), py::arg("crc_b"), py::arg("length_b"));
  py::class_<store::SegmentTensor>(module, "SegmentTensor")
      .def(py::init(&make_tensor), py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("pieces"));
  py::class_<store::SegmentFile>(module, "SegmentFile")
      .def(py::init(&create_segment), py::arg("path"), py::arg("tensors"), py::arg("metadata"),
           py::arg("system") = py::none())
      .def_property_readonly("size", &store::SegmentFile::size)
      .def_property_readonly("crc", &store::SegmentFile::crc)
      .def("sync", &store::SegmentFile::sync, py::call_guard<py::gil_scoped_release>());
  module.def("read_sections", &read_sections, py::arg("sections"), py::arg("threads"), py::arg("system") = py::none());
  register_stored_rows(module);
  module.def("mark_rows", &mark_rows, py::arg("rows"), py::arg("begin"), py::arg("end"), py::arg("seen"));
}

}  // namespace cpr
