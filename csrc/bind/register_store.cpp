#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
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
#include "core/types.hpp"
#include "store/row_marks.hpp"
#include "store/segment_reader.hpp"
#include "store/segment_writer.hpp"
#include "table/collection.hpp"

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

void check_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads: expected 1.." + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(threads));
  }
}

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

// Writes rows into a table whose lock is held: a run of consecutive ones is read straight to its place.
class TableTaker : public store::RowTaker {
 public:
  TableTaker(Collection* collection, int64_t table, bool dirty)
      : collection_(collection), table_(table), dirty_(dirty), view_(collection->table(table).view()) {}

  void* place(const int64_t* ids, int64_t n) override {
    bool consecutive = true;
    for (int64_t i = 1; i < n; ++i) consecutive &= ids[i] == ids[i - 1] + 1;
    return consecutive ? weight_bytes_of(view_, ids[0] - view_.row_offset) : nullptr;
  }

  void take(const int64_t* ids, int64_t n, const void* weight, const float* state) override {
    collection_->write_rows(table_, ids, n, weight, state, dirty_);
  }

 private:
  Collection* const collection_;
  const int64_t table_;
  const bool dirty_;
  const TableView view_;
};

// Collection, table, open file, its path, whose rows, rows, offsets of ids, weight and state, range of ids, dirty.
using StoredSpec = std::tuple<Collection*, int64_t, int, std::string, std::string, int64_t,
                              std::tuple<uint64_t, uint64_t, uint64_t>, std::pair<int64_t, int64_t>, bool>;

store::StoredRows to_stored(const StoredSpec& spec) {
  const auto& [collection, index, fd, path, owner, rows, offsets, range, dirty] = spec;
  const Table& t = collection->table(check_table(*collection, index));
  require(rows >= 0, "rows: expected at least 0, got " + std::to_string(rows));
  store::StoredRows stored;
  stored.fd = fd;
  stored.path = path;
  stored.owner = owner;
  stored.rows = rows;
  std::tie(stored.ids_at, stored.weight_at, stored.state_at) = offsets;
  stored.weight_size = static_cast<size_t>(weight_bytes(t.view().format));
  stored.state_size = static_cast<size_t>(t.state_size()) * sizeof(float);
  stored.begin = std::max(range.first, t.spec().row_offset);
  stored.end = std::min(range.second, t.spec().row_offset + t.num_rows());
  return stored;
}

std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> load_stored_rows(const std::vector<StoredSpec>& specs,
                                                                       int threads, const py::object& system) {
  check_threads(threads);
  std::vector<store::StoredRows> stored;
  for (const StoredSpec& spec : specs) stored.push_back(to_stored(spec));
  const store::SystemPtr calls = system_of(system);
  const py::gil_scoped_release release;
  std::map<Collection*, std::unique_lock<std::mutex>> held;  // always locked in the order of their addresses
  for (const StoredSpec& spec : specs) held[std::get<0>(spec)];
  for (auto& [collection, lock] : held) lock = collection->hold_rows();
  std::deque<TableTaker> takers;
  std::vector<store::RowTaker*> pointers;
  for (const StoredSpec& spec : specs) {
    pointers.push_back(&takers.emplace_back(std::get<0>(spec), std::get<1>(spec), std::get<8>(spec)));
  }
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> found;
  for (const store::StoredCrcs& crcs : store::read_rows(stored, pointers, threads, calls.get())) {
    found.emplace_back(crcs.ids, crcs.weight, crcs.state);
  }
  return found;
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
  module.def("load_stored_rows", &load_stored_rows, py::arg("stored"), py::arg("threads"),
             py::arg("system") = py::none());
  module.def("mark_rows", &mark_rows, py::arg("rows"), py::arg("begin"), py::arg("end"), py::arg("seen"));
}

}  // namespace cpr
