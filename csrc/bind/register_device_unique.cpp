// Gradients for torch's own optimizers, and what is done to rows outside of updates, of a collection on a device.
#include <pybind11/pybind11.h>

#include <cmath>
#include <string>

#include "bind/checks.hpp"
#include "bind/device_arguments.hpp"
#include "bind/lookup_arguments.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "table/device_collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

using cuda::Stream;

void gradient(DeviceCollection& c, DeviceBatch& batch, const TensorRef& grad, int64_t table, const TensorRef& rows,
              const TensorRef& values, const TensorRef& count, const TensorRef& memory, Stream stream) {
  const char* outer = c.layout().wide ? "float64" : "float32";
  require(c.optimizer().kind == Optimizer::kNone, "gradient: expected optimizer none, got a fused one; use update");
  checked_table(c, table);
  check_shape(grad, "grad", {batch.batch_size, c.layout().output_dim});
  check_shape(rows, "rows", {batch.num_ids});
  check_shape(values, "values", {batch.num_ids, c.spec(table).embedding_dim});
  check_shape(count, "count", {1});
  const void* g = data_as(grad, "grad", outer);
  auto* to_rows = data_of<int64_t>(rows, "rows", "int64");
  void* to_values = data_as(values, "values", outer);
  auto* number = data_of<int64_t>(count, "count", "int64");
  void* workspace = checked_memory(memory, "memory", c.gradient_bytes(batch.num_ids));
  py::gil_scoped_release release;
  c.gradient(&batch, g, table, to_rows, to_values, number, workspace, stream);
}

void track(DeviceCollection& c, int64_t table, const TensorRef& ids, const TensorRef& memory, Stream stream) {
  checked_table(c, table);
  const IdsArgument of = checked_ids(ids);
  void* workspace = checked_memory(memory, "memory", c.ids_bytes(of.n));
  py::gil_scoped_release release;
  c.track(table, of.data, of.are_64bit, of.n, workspace, stream);
}

int checked_norm(double norm_type) {
  if (std::isinf(norm_type) && norm_type > 0.0) return 0;
  require(norm_type == 1.0 || norm_type == 2.0,
          "norm_type: expected 1, 2 or inf for tables on a device, got " + std::to_string(norm_type));
  return static_cast<int>(norm_type);
}

void renormalise(DeviceCollection& c, int64_t table, const TensorRef& ids, double max_norm, double norm_type,
                 const TensorRef& count, const TensorRef& memory, Stream stream) {
  checked_table(c, table);
  check_max_norm(max_norm);
  const int norm = checked_norm(norm_type);
  const IdsArgument of = checked_ids(ids);
  check_shape(count, "count", {1});
  auto* number = data_of<int64_t>(count, "count", "int64");
  void* workspace = checked_memory(memory, "memory", c.ids_bytes(of.n));
  py::gil_scoped_release release;
  c.renormalise(table, of.data, of.are_64bit, of.n, max_norm, norm, number, workspace, stream);
}

}  // namespace

void register_device_unique(py::class_<DeviceCollection>& c) {
  c.def("gradient_bytes", &DeviceCollection::gradient_bytes, py::arg("num_ids"));
  c.def("gradient", &gradient, py::arg("batch"), py::arg("grad"), py::kw_only(), py::arg("table"), py::arg("rows"),
        py::arg("values"), py::arg("count"), py::arg("memory"), py::arg("stream") = 0);
  c.def("ids_bytes", &DeviceCollection::ids_bytes, py::arg("num_ids"));
  c.def("track", &track, py::arg("table"), py::arg("ids"), py::kw_only(), py::arg("memory"), py::arg("stream") = 0);
  c.def("renormalise", &renormalise, py::arg("table"), py::arg("ids"), py::arg("max_norm"), py::arg("norm_type"),
        py::kw_only(), py::arg("count"), py::arg("memory"), py::arg("stream") = 0);
}

}  // namespace cpr
