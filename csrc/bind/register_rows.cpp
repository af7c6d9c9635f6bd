// Rows and trackers of a collection's tables.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bind/checks.hpp"
#include "bind/distance_argument.hpp"
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

// Memory of a table's dtype; NumPy has no bfloat16 and gives its bit pattern.
void* weight_data(const TensorRef& weight, const Table& t) {
  const bool pattern = t.spec().dtype == DType::kBFloat16 && weight.dtype == "uint16";
  return data_as(weight, "weight", pattern ? "uint16" : dtype_name(t.spec().dtype));
}

py::array weight_view(Collection& c, int64_t table) {
  Table& t = c.table(check_table(c, table));
  require(t.view().weight != nullptr, "weight: external table '" + t.spec().name + "' has none yet: bind_weight first");
  auto* owner = new std::shared_ptr<void>(t.weight_owner());
  py::capsule capsule(owner, [](void* p) { delete static_cast<std::shared_ptr<void>*>(p); });
  return py::array(array_dtype(t.spec().dtype), std::vector<int64_t>{t.num_rows(), t.dim()}, t.view().weight, capsule);
}

// One value is a scalar of the row, more are its columns.
std::vector<int64_t> state_shape(const Table& t, int64_t n) {
  return t.state_size() == 1 ? std::vector<int64_t>{n} : std::vector<int64_t>{n, t.state_size()};
}

std::optional<py::array_t<float>> read_state(Collection& c, int64_t table) {
  const Table& t = c.table(check_table(c, table));
  if (t.state_size() == 0) return std::nullopt;
  py::array_t<float> values(state_shape(t, t.num_rows()));
  float* out = values.mutable_data();
  py::gil_scoped_release release;
  c.read_state(table, out);
  return values;
}

py::array_t<float> read_drift(Collection& c, int64_t table) {
  const Table& t = c.table(check_table(c, table));
  require(t.spec().track_drift, "drift: table '" + t.spec().name + "' doesn't track it");
  py::array_t<float> values(t.num_rows());
  float* out = values.mutable_data();
  py::gil_scoped_release release;
  c.read_drift(table, out);
  return values;
}

void set_drift(Collection& c, int64_t table, const TensorRef& drift) {
  const Table& t = c.table(check_table(c, table));
  require(t.spec().track_drift, "drift: table '" + t.spec().name + "' doesn't track it");
  check_shape(drift, "drift", {t.num_rows()});
  const float* values = data_of<float>(drift, "drift", "float32");
  for (int64_t row = 0; row < t.num_rows(); ++row) {
    require(values[row] >= 0.0F,
            "drift: expected at least 0, got " + std::to_string(values[row]) + " at row " + std::to_string(row));
  }
  py::gil_scoped_release release;
  c.set_drift(table, values);
}

// Words of local rows [0, n) through `read`, copied.
template <typename T, typename F>
py::array_t<T> per_row(Collection& c, int64_t table, F read) {
  const TableView view = c.settled_table(check_table(c, table)).view();
  py::array_t<T> values(view.num_rows);
  T* out = values.mutable_data();
  for (int64_t row = 0; row < view.num_rows; ++row) out[row] = read(load_word(&meta_of(view, row)->word));
  return values;
}

// Global row ids, and the memory of their weights and states.
struct RowMemory {
  const int64_t* ids;
  int64_t n;
  void* weight;
  float* state;
};

RowMemory row_memory(Collection& c, int64_t table, const TensorRef& rows, const TensorRef& weight,
                     const std::optional<TensorRef>& state) {
  const Table& t = c.table(check_table(c, table));
  const int64_t n = rows.size();
  check_shape(rows, "rows", {n});
  check_shape(weight, "weight", {n, t.dim()});
  require(state.has_value() == (t.state_size() > 0),
          "state: expected " + (t.state_size() > 0 ? std::to_string(t.state_size()) + " values a row" : "none") +
              " for this optimizer");
  if (state.has_value()) check_shape(*state, "state", state_shape(t, n));
  return {data_of<int64_t>(rows, "rows", "int64"), n, weight_data(weight, t),
          state.has_value() ? data_of<float>(*state, "state", "float32") : nullptr};
}

void load_rows(Collection& c, int64_t table, const TensorRef& rows, const TensorRef& weight,
               const std::optional<TensorRef>& state, bool dirty, int threads) {
  const RowMemory of = row_memory(c, table, rows, weight, state);
  py::gil_scoped_release release;
  c.load_rows(table, of.ids, of.n, of.weight, of.state, dirty, std::clamp(threads, 1, kMaxThreads));
}

void copy_rows(Collection& c, int64_t table, const TensorRef& rows, const TensorRef& weight,
               const std::optional<TensorRef>& state, int threads) {
  const RowMemory to = row_memory(c, table, rows, weight, state);
  py::gil_scoped_release release;
  c.copy_rows(table, to.ids, to.n, to.weight, to.state, std::clamp(threads, 1, kMaxThreads));
}

void put_rows(Collection& c, int64_t table, const TensorRef& rows, const TensorRef& weight,
              const std::optional<TensorRef>& state) {
  const RowMemory of = row_memory(c, table, rows, weight, state);
  py::gil_scoped_release release;
  c.put_rows(table, of.ids, of.n, of.weight, of.state);
}

py::array_t<float> changes(Collection& c, int64_t table, const std::string& metric, int threads) {
  const cpu::Distance kind = distance_of(metric);
  const Table& t = c.table(check_table(c, table));
  require(t.saved() != nullptr, "changes: table '" + t.spec().name + "' keeps no copy of its rows; call keep_saved");
  py::array_t<float> values(t.num_rows());
  float* out = values.mutable_data();
  {
    py::gil_scoped_release release;
    c.changes(table, kind, out, std::clamp(threads, 1, kMaxThreads));
  }
  return values;
}

}  // namespace

void register_rows(py::class_<Collection>& c) {
  c.def("weight", &weight_view, py::arg("table"));
  c.def("state", &read_state, py::arg("table"));
  c.def(
      "state_columns",
      [](Collection& self, int64_t table) { return self.table(check_table(self, table)).state_size(); },
      py::arg("table"));
  c.def(
      "counts",
      [](Collection& self, int64_t table) {
        return per_row<uint32_t>(self, table, [](uint32_t word) { return word & kCountMask; });
      },
      py::arg("table"));
  c.def(
      "dirty",
      [](Collection& self, int64_t table) {
        return per_row<bool>(self, table, [](uint32_t word) { return (word & kDirtyBit) != 0; });
      },
      py::arg("table"));
  c.def("drift", &read_drift, py::arg("table"));
  c.def("set_drift", &set_drift, py::arg("table"), py::arg("drift"));
  c.def("changes", &changes, py::arg("table"), py::arg("metric") = "l2", py::kw_only(), py::arg("threads") = 1);
  c.def(
      "keep_saved",
      [](Collection& self, int64_t table, bool keep) {
        check_table(self, table);
        py::gil_scoped_release release;
        self.keep_saved(table, keep);
      },
      py::arg("table"), py::arg("keep"));
  c.def(
      "refresh_saved",
      [](Collection& self, int64_t table, int64_t begin, int64_t end) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.refresh_saved(table, begin, end);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"));
  c.def(
      "drift_histogram",
      [](Collection& self, int64_t table) {
        return to_array(self.settled_table(check_table(self, table)).drift_histogram(), {kDriftBuckets});
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
        return to_array(self.settled_table(check_table(self, table)).histogram(), {kCountBuckets});
      },
      py::arg("table"));
  c.def(
      "num_dirty",
      [](Collection& self, int64_t table) { return self.settled_table(check_table(self, table)).num_dirty(); },
      py::arg("table"));
  c.def("load_rows", &load_rows, py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"), py::kw_only(),
        py::arg("dirty") = false, py::arg("threads") = 1);
  c.def("copy_rows", &copy_rows, py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"), py::kw_only(),
        py::arg("threads") = 1);
  c.def("put_rows", &put_rows, py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"));
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
