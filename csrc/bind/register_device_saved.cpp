// The copy of rows as last saved, of a collection on a device.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>

#include "bind/checks.hpp"
#include "bind/device_arguments.hpp"
#include "bind/distance_argument.hpp"
#include "bind/register.hpp"
#include "table/device_collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

using cuda::Stream;

py::array_t<float> changes(DeviceCollection& c, int64_t table, const std::string& metric, int threads, Stream stream) {
  const cpu::Distance kind = distance_of(metric);
  const TableSpec& spec = c.spec(checked_table(c, table));
  require(c.keeps_saved(table), "changes: table '" + spec.name + "' keeps no copy of its rows; call keep_saved");
  py::array_t<float> values(spec.num_embeddings);
  float* out = values.mutable_data();
  {
    py::gil_scoped_release release;
    c.changes(table, kind, out, std::clamp(threads, 1, kMaxThreads), stream);
  }
  return values;
}

}  // namespace

void register_device_saved(py::class_<DeviceCollection>& c) {
  c.def(
      "keep_saved",
      [](DeviceCollection& self, int64_t table, bool keep, Stream stream) {
        checked_table(self, table);
        py::gil_scoped_release release;
        self.keep_saved(table, keep, stream);
      },
      py::arg("table"), py::arg("keep"), py::arg("stream") = 0);
  c.def(
      "refresh_saved",
      [](DeviceCollection& self, int64_t table, int64_t begin, int64_t end, Stream stream) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.refresh_saved(table, begin, end, stream);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"), py::arg("stream") = 0);
  c.def("changes", &changes, py::arg("table"), py::arg("metric") = "l2", py::kw_only(), py::arg("threads") = 1,
        py::arg("stream") = 0);
  c.def_property_readonly("saved_bytes", &DeviceCollection::saved_bytes);
}

}  // namespace cpr
