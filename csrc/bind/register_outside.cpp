// Memory of the caller's that a collection's tables are bound to, and what changes rows outside of updates.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "bind/checks.hpp"
#include "bind/lookup_arguments.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

// Keeps a Python object alive from C++; lets go of it with the GIL held.
std::shared_ptr<void> hold(py::object object) {
  return std::shared_ptr<void>(object.release().ptr(), [](void* p) {
    const py::gil_scoped_acquire acquire;
    Py_DECREF(static_cast<PyObject*>(p));
  });
}

void bind_weight(Collection& c, int64_t table, const TensorRef& weight, py::object owner) {
  const Table& t = c.table(check_table(c, table));
  check_shape(weight, "weight", {t.num_rows(), t.dim()});
  void* data = data_as(weight, "weight", dtype_name(t.spec().dtype));
  std::shared_ptr<void> kept = hold(std::move(owner));
  py::gil_scoped_release release;
  c.bind_weight(table, data, std::move(kept));
}

void bind_state(Collection& c, int64_t table, const std::vector<TensorRef>& arrays, py::object owner) {
  const Table& t = c.table(check_table(c, table));
  require(c.optimizer().kind == Optimizer::kNone, "bind_state: expected optimizer none, got a fused optimizer");
  require(arrays.size() <= static_cast<size_t>(kMaxStateArrays),
          "arrays: expected at most " + std::to_string(kMaxStateArrays) + ", got " + std::to_string(arrays.size()));
  std::vector<StateArray> bound;
  for (const TensorRef& array : arrays) {
    require((array.shape.size() == 1 || array.shape.size() == 2) && array.shape[0] == t.num_rows(),
            "arrays: expected shapes [" + std::to_string(t.num_rows()) + "] or [" + std::to_string(t.num_rows()) +
                ", d], got " + describe(array.shape));
    const int64_t columns = array.shape.size() == 2 ? array.shape[1] : 1;
    require(columns >= 1, "arrays: expected at least one column, got shape " + describe(array.shape));
    bound.push_back({data_of<float>(array, "arrays", "float32"), columns});
  }
  std::shared_ptr<void> kept = hold(std::move(owner));
  py::gil_scoped_release release;
  c.bind_state(table, bound, std::move(kept));
}

void mark_dirty(Collection& c, int64_t table, const std::optional<TensorRef>& rows) {
  check_table(c, table);
  if (!rows.has_value()) {
    py::gil_scoped_release release;
    return c.mark_all_dirty(table);
  }
  check_shape(*rows, "rows", {rows->size()});
  const int64_t* ids = data_of<int64_t>(*rows, "rows", "int64");
  py::gil_scoped_release release;
  c.mark_dirty(table, ids, rows->size());
}

int64_t mark_dirty_nonzero(Collection& c, int64_t table, const TensorRef& grad) {
  const Table& t = c.table(check_table(c, table));
  check_shape(grad, "grad", {t.num_rows(), t.dim()});
  const DType dtype = parse_dtype(grad.dtype, "grad: ");
  py::gil_scoped_release release;
  return c.mark_dirty_nonzero(table, reinterpret_cast<const void*>(grad.address), dtype);
}

void track(Collection& c, int64_t table, const TensorRef& ids) {
  check_table(c, table);
  const IdsArgument of = checked_ids(ids);
  py::gil_scoped_release release;
  c.track(table, of.data, of.are_64bit, of.n);
}

int64_t renormalise(Collection& c, int64_t table, const TensorRef& ids, double max_norm, double norm_type) {
  check_table(c, table);
  check_max_norm(max_norm);
  require(norm_type > 0.0, "norm_type: expected a value > 0, got " + std::to_string(norm_type));
  const IdsArgument of = checked_ids(ids);
  py::gil_scoped_release release;
  return c.renormalise(table, of.data, of.are_64bit, of.n, max_norm, norm_type);
}

}  // namespace

void register_outside(py::class_<Collection>& c) {
  c.def("bind_weight", &bind_weight, py::arg("table"), py::arg("weight"), py::arg("owner"));
  c.def("bind_state", &bind_state, py::arg("table"), py::arg("arrays"), py::arg("owner"));
  c.def("mark_dirty", &mark_dirty, py::arg("table"), py::arg("rows") = py::none());
  c.def("mark_dirty_nonzero", &mark_dirty_nonzero, py::arg("table"), py::arg("grad"));
  c.def("track", &track, py::arg("table"), py::arg("ids"));
  c.def("renormalise", &renormalise, py::arg("table"), py::arg("ids"), py::arg("max_norm"), py::arg("norm_type"));
}

}  // namespace cpr
