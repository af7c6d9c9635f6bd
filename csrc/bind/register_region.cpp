#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bind/checks.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {

namespace {

int64_t item_bytes(const std::string& dtype) {
  if (dtype == "bool" || dtype == "int8" || dtype == "uint8") return 1;
  if (dtype == "int16" || dtype == "float16" || dtype == "bfloat16") return 2;
  if (dtype == "int32" || dtype == "uint32" || dtype == "float32") return 4;
  require(dtype == "int64" || dtype == "float64", "tensors: no dtype " + dtype);
  return 8;
}

void commit(Region& region, const py::bytes& meta, const std::vector<TensorRef>& tensors, bool ends_step) {
  std::vector<Region::Bytes> parts;
  for (const TensorRef& ref : tensors) {
    parts.push_back(
        {reinterpret_cast<const void*>(ref.address), static_cast<size_t>(ref.size() * item_bytes(ref.dtype))});
  }
  const std::string text = meta;
  py::gil_scoped_release release;
  region.commit(text, parts, ends_step);
}

}  // namespace

void register_region(py::module_& m, py::class_<Collection>& c) {
  py::class_<Region, std::shared_ptr<Region>>(m, "Region")
      .def(py::init<int, std::string, bool>(), py::arg("fd"), py::arg("name"), py::kw_only(), py::arg("discard"))
      .def_property_readonly("attached", &Region::attached)
      .def_property_readonly("reason", &Region::reason)
      .def_property_readonly("sequence", &Region::sequence)
      .def("describe", &Region::describe, py::arg("text"))
      .def("reset", &Region::reset, py::arg("reason"))
      .def("invalidate", &Region::invalidate)
      .def("commit", &commit, py::arg("meta"), py::arg("tensors"), py::kw_only(), py::arg("ends_step") = true)
      .def("read", [](const Region& self) {
        const auto [meta, tensors] = self.read();
        py::list parts;
        for (const std::string& tensor : tensors) parts.append(py::bytes(tensor));
        return py::make_tuple(py::bytes(meta), parts);
      });
  c.def_property_readonly("region", &Collection::region);
  c.def("reattach", &Collection::reattach, py::call_guard<py::gil_scoped_release>());
  c.def(
      "doubtful_rows",
      [](const Collection& self, int64_t table) -> py::object {
        check_table(self, table);
        if (!self.region() || !self.region()->attached()) return to_array(std::vector<int64_t>(), {0});
        if (self.all_doubtful()) return py::none();
        std::vector<int64_t> rows = self.doubtful_rows(table);
        const auto n = static_cast<int64_t>(rows.size());
        return to_array(std::move(rows), {n});
      },
      py::arg("table"));
}

}  // namespace cpr
