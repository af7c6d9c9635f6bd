// Rows, trackers and snapshots of a collection on a device.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "bind/checks.hpp"
#include "bind/device_arguments.hpp"
#include "bind/register.hpp"
#include "bind/snapshot_arguments.hpp"
#include "bind/snapshot_handle.hpp"
#include "bind/tensor_ref.hpp"
#include "table/device_collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

using cuda::Stream;

int64_t rows_of(const DeviceCollection& c, int64_t table) { return c.spec(checked_table(c, table)).num_embeddings; }

// One value is a scalar of the row, more are its columns.
std::vector<int64_t> state_shape(int64_t columns, int64_t n) {
  return columns == 1 ? std::vector<int64_t>{n} : std::vector<int64_t>{n, columns};
}

// Global row ids, and the host's memory of their weights and states.
struct RowMemory {
  const int64_t* ids;
  int64_t n;
  void* weight;
  float* state;
};

RowMemory row_memory(const DeviceCollection& c, int64_t table, const TensorRef& rows, const TensorRef& weight,
                     const std::optional<TensorRef>& state) {
  const TableSpec& spec = c.spec(checked_table(c, table));
  const int64_t columns = c.state_columns(table);
  const int64_t n = rows.size();
  check_shape(rows, "rows", {n});
  check_shape(weight, "weight", {n, spec.embedding_dim});
  require(
      state.has_value() == (columns > 0),
      "state: expected " + (columns > 0 ? std::to_string(columns) + " values a row" : "none") + " for this optimizer");
  if (state.has_value()) check_shape(*state, "state", state_shape(columns, n));
  const bool pattern = spec.dtype == DType::kBFloat16 && weight.dtype == "uint16";
  return {data_of<int64_t>(rows, "rows", "int64"), n,
          data_as(weight, "weight", pattern ? "uint16" : dtype_name(spec.dtype)),
          state.has_value() ? data_of<float>(*state, "state", "float32") : nullptr};
}

// A call of `read` that fills an array of `shape`.
template <typename T, typename Read>
py::array_t<T> filled(const std::vector<int64_t>& shape, const Read& read) {
  py::array_t<T> values(shape);
  T* out = values.mutable_data();
  py::gil_scoped_release release;
  read(out);
  return values;
}

template <typename Read>
py::array_t<int64_t> listed(const Read& read) {
  std::vector<int64_t> numbers;
  {
    py::gil_scoped_release release;
    numbers = read();
  }
  const auto n = static_cast<int64_t>(numbers.size());
  return to_array(std::move(numbers), {n});
}

void define_reads(py::class_<DeviceCollection>& c) {
  c.def(
      "state_columns",
      [](const DeviceCollection& self, int64_t table) { return self.state_columns(checked_table(self, table)); },
      py::arg("table"));
  c.def(
      "state",
      [](DeviceCollection& self, int64_t table, Stream stream) -> std::optional<py::array_t<float>> {
        const int64_t columns = self.state_columns(checked_table(self, table));
        if (columns == 0) return std::nullopt;
        return filled<float>(state_shape(columns, rows_of(self, table)),
                             [&](float* out) { self.read_row_state(table, out, stream); });
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "trackers",
      [](DeviceCollection& self, int64_t table, Stream stream) {
        return filled<uint32_t>({rows_of(self, table)}, [&](uint32_t* out) { self.read_trackers(table, out, stream); });
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "drift",
      [](DeviceCollection& self, int64_t table, Stream stream) {
        const TableSpec& spec = self.spec(checked_table(self, table));
        require(spec.track_drift, "drift: table '" + spec.name + "' doesn't track it");
        return filled<float>({rows_of(self, table)}, [&](float* out) { self.read_drift(table, out, stream); });
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "sampled_rows",
      [](DeviceCollection& self, int64_t table, Stream stream) {
        checked_table(self, table);
        return listed([&] { return self.sampled_rows(table, stream); });
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "count_histogram",
      [](DeviceCollection& self, int64_t table, Stream stream) {
        checked_table(self, table);
        return listed([&] { return self.histogram(table, stream); });
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "drift_histogram",
      [](DeviceCollection& self, int64_t table, Stream stream) {
        checked_table(self, table);
        return listed([&] { return self.drift_histogram(table, stream); });
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "num_dirty",
      [](DeviceCollection& self, int64_t table, Stream stream) {
        checked_table(self, table);
        py::gil_scoped_release release;
        return self.num_dirty(table, stream);
      },
      py::arg("table"), py::arg("stream") = 0);
  c.def(
      "copy_rows",
      [](DeviceCollection& self, int64_t table, const TensorRef& rows, const TensorRef& weight,
         const std::optional<TensorRef>& state, Stream stream) {
        const RowMemory to = row_memory(self, table, rows, weight, state);
        py::gil_scoped_release release;
        self.copy_rows(table, to.ids, to.n, to.weight, to.state, stream);
      },
      py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"), py::arg("stream") = 0);
}

void set_drift(DeviceCollection& c, int64_t table, const TensorRef& drift, Stream stream) {
  const TableSpec& spec = c.spec(checked_table(c, table));
  require(spec.track_drift, "drift: table '" + spec.name + "' doesn't track it");
  check_shape(drift, "drift", {spec.num_embeddings});
  const float* values = data_of<float>(drift, "drift", "float32");
  for (int64_t row = 0; row < spec.num_embeddings; ++row) {
    require(values[row] >= 0.0F,
            "drift: expected at least 0, got " + std::to_string(values[row]) + " at row " + std::to_string(row));
  }
  py::gil_scoped_release release;
  c.set_drift(table, values, stream);
}

void mark_dirty(DeviceCollection& c, int64_t table, const std::optional<TensorRef>& rows, Stream stream) {
  checked_table(c, table);
  const int64_t* ids = nullptr;
  if (rows.has_value()) {
    check_shape(*rows, "rows", {rows->size()});
    ids = data_of<int64_t>(*rows, "rows", "int64");
  }
  py::gil_scoped_release release;
  if (ids == nullptr) return c.mark_all_dirty(table, stream);
  c.mark_dirty(table, ids, rows->size(), stream);
}

void define_writes(py::class_<DeviceCollection>& c) {
  c.def(
      "load_rows",
      [](DeviceCollection& self, int64_t table, const TensorRef& rows, const TensorRef& weight,
         const std::optional<TensorRef>& state, bool dirty, Stream stream) {
        const RowMemory of = row_memory(self, table, rows, weight, state);
        py::gil_scoped_release release;
        self.load_rows(table, of.ids, of.n, of.weight, of.state, dirty, stream);
      },
      py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"), py::kw_only(), py::arg("dirty") = false,
      py::arg("stream") = 0);
  c.def(
      "put_rows",
      [](DeviceCollection& self, int64_t table, const TensorRef& rows, const TensorRef& weight,
         const std::optional<TensorRef>& state, Stream stream) {
        const RowMemory of = row_memory(self, table, rows, weight, state);
        py::gil_scoped_release release;
        self.put_rows(table, of.ids, of.n, of.weight, of.state, stream);
      },
      py::arg("table"), py::arg("rows"), py::arg("weight"), py::arg("state"), py::arg("stream") = 0);
  c.def(
      "set_trackers",
      [](DeviceCollection& self, int64_t table, const TensorRef& words, Stream stream) {
        check_shape(words, "words", {rows_of(self, table)});
        const uint32_t* data = data_of<uint32_t>(words, "words", "uint32");
        py::gil_scoped_release release;
        self.set_trackers(table, data, stream);
      },
      py::arg("table"), py::arg("words"), py::arg("stream") = 0);
  c.def("set_drift", &set_drift, py::arg("table"), py::arg("drift"), py::arg("stream") = 0);
  c.def("mark_dirty", &mark_dirty, py::arg("table"), py::arg("rows") = py::none(), py::arg("stream") = 0);
  c.def(
      "reset_rows",
      [](DeviceCollection& self, int64_t table, int64_t begin, int64_t end, Stream stream) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.reset_rows(table, begin, end, stream);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"), py::arg("stream") = 0);
  c.def(
      "discard_rows",
      [](DeviceCollection& self, int64_t table, int64_t begin, int64_t end, Stream stream) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.discard_rows(table, begin, end, stream);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"), py::arg("stream") = 0);
  c.def(
      "clear_trackers",
      [](DeviceCollection& self, int64_t table, int64_t begin, int64_t end, bool dirty, Stream stream) {
        check_range(self, table, begin, end);
        py::gil_scoped_release release;
        self.clear_trackers(table, begin, end, dirty, stream);
      },
      py::arg("table"), py::arg("begin"), py::arg("end"), py::kw_only(), py::arg("dirty"), py::arg("stream") = 0);
}

SnapshotHandle begin(DeviceCollection& c, const std::vector<SelectionRequest>& selections, bool clears_dirty,
                     const std::vector<ShardRows>& shard_rows, bool blocking, bool walk, Stream stream) {
  std::vector<const TableSpec*> tables;
  for (int64_t t = 0; t < c.num_tables(); ++t) tables.push_back(&c.spec(t));
  check_selections(tables, selections, blocking, walk);
  const std::vector<ShardRule> shards = shard_rules(tables, shard_rows);
  py::gil_scoped_release release;
  return SnapshotHandle(c.begin(selections, clears_dirty, shards, blocking, walk, stream));
}

}  // namespace

void register_device_rows(py::class_<DeviceCollection>& c) {
  c.def("snapshot_bytes", &DeviceCollection::snapshot_bytes, py::arg("max_staging_bytes"));
  c.def(
      "bind_snapshot",
      [](DeviceCollection& self, const TensorRef& memory, int64_t max_staging_bytes, const py::object& owner,
         Stream stream) {
        void* at = checked_memory(memory, "memory", self.snapshot_bytes(max_staging_bytes));
        self.bind_snapshot(at, max_staging_bytes, owner_of(owner), stream);
      },
      py::arg("memory"), py::arg("max_staging_bytes"), py::arg("owner"), py::arg("stream") = 0);
  def_max_stall_seconds(c);
  define_reads(c);
  define_writes(c);
  c.def("begin", &begin, py::arg("selections"), py::kw_only(), py::arg("clears_dirty"),
        py::arg("shard_rows") = std::vector<ShardRows>(), py::arg("blocking") = false, py::arg("walk") = true,
        py::arg("stream") = 0, py::keep_alive<0, 1>());
  c.def("prepare_step", &DeviceCollection::prepare_step, py::arg("num_ids"), py::arg("stream") = 0,
        py::call_guard<py::gil_scoped_release>());
  c.def("close", &DeviceCollection::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace cpr
