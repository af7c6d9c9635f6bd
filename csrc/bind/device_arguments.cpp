#include "bind/device_arguments.hpp"

#include <stdexcept>
#include <string>

#include "bind/checks.hpp"

namespace py = pybind11;

namespace cpr {

std::shared_ptr<void> owner_of(const py::object& object) {
  auto* held = new py::object(object);
  return {held, [](void* p) {
            const py::gil_scoped_acquire gil;
            delete static_cast<py::object*>(p);
          }};
}

int64_t checked_table(const DeviceCollection& c, int64_t table) {
  if (table >= 0 && table < c.num_tables()) return table;
  throw std::out_of_range("table: expected 0 <= table < " + std::to_string(c.num_tables()) + ", got " +
                          std::to_string(table));
}

void check_range(const DeviceCollection& c, int64_t table, int64_t begin, int64_t end) {
  const TableSpec& spec = c.spec(checked_table(c, table));
  if (begin >= spec.row_offset && end >= begin && end <= spec.row_offset + spec.num_embeddings) return;
  throw std::out_of_range("rows: expected a range within [" + std::to_string(spec.row_offset) + ", " +
                          std::to_string(spec.row_offset + spec.num_embeddings) + ") for table '" + spec.name +
                          "', got [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
}

void* checked_memory(const TensorRef& ref, const char* name, int64_t bytes) {
  const int64_t item = ref.dtype == "uint8" || ref.dtype == "int8"                                  ? 1
                       : ref.dtype == "float16" || ref.dtype == "bfloat16" || ref.dtype == "uint16" ? 2
                       : ref.dtype == "float64" || ref.dtype == "int64" || ref.dtype == "uint64"    ? 8
                                                                                                    : 4;
  require(ref.size() * item >= bytes, std::string(name) + ": expected at least " + std::to_string(bytes) +
                                          " bytes, got " + std::to_string(ref.size() * item));
  require(bytes == 0 || ref.address % 16 == 0, std::string(name) + ": expected memory aligned to 16 bytes");
  return reinterpret_cast<void*>(ref.address);
}

}  // namespace cpr
