// Rows and trackers of a collection's tables.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "bind/checks.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

// Global [begin, end) of one table.
void check_range(Collection& c, int64_t table, int64_t begin, int64_t end) {
  const TableSpec& spec = c.table(check_table(c, table)).spec();
  if (begin < spec.row_offset || end < begin || end > spec.row_offset + spec.num_embeddings) {
    throw std::out_of_range("rows: expected a range within [" + std::to_string(spec.row_offset) + ", " +
                            std::to_string(spec.row_offset + spec.num_embeddings) + ") for table '" + spec.name +
                            "', got [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  }
}

py::array_t<float> weight_view(Collection& c, int64_t table) {
  Table& t = c.table(check_table(c, table));
  auto* owner = new std::shared_ptr<void>(t.weight_owner());
  py::capsule capsule(owner, [](void* p) { delete static_cast<std::shared_ptr<void>*>(p); });
  return py::array_t<float>({t.num_rows(), t.dim()}, t.view().weight, capsule);
}

// Words of local rows [0, n) through `read`, copied.
template <typename T, typename F>
py::array_t<T> per_row(Collection& c, int64_t table, F read) {
  const TableView view = c.table(check_table(c, table)).view();
  py::array_t<T> values(view.num_rows);
  T* out = values.mutable_data();
  for (int64_t row = 0; row < view.num_rows; ++row) out[row] = read(view.meta[row]);
  return values;
}

void load_rows(Collection& c, int64_t table, const TensorRef& rows, const TensorRef& weight,
               const std::optional<TensorRef>& state, bool dirty) {
  const Table& t = c.table(check_table(c, table));
  const int64_t n = rows.size();
  check_shape(rows, "rows", {n});
  check_shape(weight, "weight", {n, t.dim()});
  const int64_t* ids = data_of<int64_t>(rows, "rows", "int64");
  const float* w = data_of<float>(weight, "weight", "float32");
  require(state.has_value() == t.has_state(),
          std::string("state: expected ") + (t.has_state() ? "a value a row" : "none") + " for this optimizer");
  if (state.has_value()) check_shape(*state, "state", {n});
  const float* s = state.has_value() ? data_of<float>(*state, "state", "float32") : nullptr;
  py::gil_scoped_release release;
  c.load_rows(table, ids, n, w, s, dirty);
}

// Keeps a Python object alive from C++; lets go of it with the GIL held.
std::shared_ptr<void> hold(py::object object) {
  return std::shared_ptr<void>(object.release().ptr(), [](void* p) {
    const py::gil_scoped_acquire acquire;
    Py_DECREF(static_cast<PyObject*>(p));
  });
}

}  // namespace

void register_rows(py::class_<Collection>& c) {
  c.def("weight", &weight_view, py::arg("table"));
  c.def(
      "state",
      [](Collection& self, int64_t table) -> std::optional<py::array_t<float>> {
        if (!self.table(check_table(self, table)).has_state()) return std::nullopt;
        return per_row<float>(self, table, [](const RowMeta& m) { return m.state; });
      },
      py::arg("table"));
  c.def(
      "counts",
      [](Collection& self, int64_t table) {
        return per_row<uint32_t>(self, table, [](const RowMeta& m) { return load_word(&m.word) & kCountMask; });
      },
      py::arg("table"));
  c.def(
      "dirty",
      [](Collection& self, int64_t table) {
        return per_row<bool>(self, table, [](const RowMeta& m) { return (load_word(&m.word) & kDirtyBit) != 0; });
      },
      py::arg("table"));
  c.def(
      "trackers",
      [](Collection& self, int64_t table) {
        py::array_t<uint32_t> words(self.table(check_table(self, table)).num_rows());
        uint32_t* out = words.mutable_data();
        {
          py::gil_scoped_release release;
          self.read_trackers(table, out);
        }
        return words;
      },
      py::arg("table"));
  c.def(
      "set_trackers",
      [](Collection& self, int64_t table, const TensorRef& words) {
        check_shape(words, "words", {self.table(check_table(self, table)).num_rows()});
        const uint32_t* data = data_of<uint32_t>(words, "words", "uint32");
        py::gil_scoped_release release;
        self.set_trackers(table, data);
      },
      py::arg("table"), py::arg("words"));
  c.def(
      "sampled_rows",
      [](Collection& self, int64_t table) {
        check_table(self, table);
        std::vector<int64_t> rows;
        {
          py::gil_scoped_release release;
          rows = self.sampled_rows(table);
        }
        const auto n = static_cast<int64_t>(rows.size());
        return to_array(std::move(rows), {n});
      },
      py::arg("table"));
  c.def(
      "count_histogram",
      [](Collection& self, int64_t table) {
        return to_array(self.table(check_table(self, table)).histogram(), {kCountBuckets});
      },
      py::arg("table"));
  c.def(
      "num_dirty", [](Collection& self, int64_t table) { return self.table(check_table(self, table)).num_dirty(); },
      py::arg("table"));
  c.def(
      "bind_weight",
      [](Collection& self, int64_t table, const TensorRef& weight, py::object owner) {
        const Table& t = self.table(check_table(self, table));
        check_shape(weight, "weight", {t.num_rows(), t.dim()});
        float* data = data_of<float>(weight, "weight", "float32");
        std::shared_ptr<void> kept = hold(std::move(owner));
        py::gil_scoped_release release;
        self.bind_weight(table, data, std::move(kept));
      },
      py::arg("table"), py::arg("weight"), py::arg("owner"));
  c.def(
      "mark_dirty",
      [](Collection& self, int64_t table, const std::optional<TensorRef>& rows) {
        check_table(self, table);
        if (rows.has_value()) check_shape(*rows, "rows", {rows->size()});
        const int64_t* ids = rows.has_value() ? data_of<int64_t>(*rows, "rows", "int64") : nullptr;
        py::gil_scoped_release release;
        if (ids == nullptr && !rows.has_value()) {
          self.mark_all_dirty(table);
        } else {
          self.mark_dirty(table, ids, rows->size());
        }
      },
      py::arg("table"), py::arg("rows") = py::none());
  c.def("load_rows", &load_rows, py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"), py::kw_only(),
        py::arg("dirty") = false);
  c.def(
      "reset_rows",
      [](Collection& self, int64_t table, int64_t begin, int64_t end) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.reset_rows(table, begin, end);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"));
  c.def(
      "discard_rows",
      [](Collection& self, int64_t table, int64_t begin, int64_t end) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.discard_rows(table, begin, end);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"));
  c.def(
      "clear_trackers",
      [](Collection& self, int64_t table, int64_t begin, int64_t end, bool dirty) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.clear_trackers(table, begin, end, dirty);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"), py::kw_only(), py::arg("dirty"));
}

}  // namespace cpr
