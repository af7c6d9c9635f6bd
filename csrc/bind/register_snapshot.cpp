#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <utility>

#include "bind/checks.hpp"
#include "bind/gathering.hpp"
#include "bind/register.hpp"
#include "bind/snapshot_handle.hpp"

namespace py = pybind11;

namespace cpr {

SnapshotHandle::~SnapshotHandle() {
  if (snapshot_ == nullptr) return;
  if (!snapshot_->owned_by_this_process()) {
    new std::shared_ptr<SnapshotReader>(std::move(snapshot_));  // see SnapshotReader::owned_by_this_process
    return;
  }
  const py::gil_scoped_release release;
  snapshot_->abort();
}

namespace {

// A chunk as Python holds it: views keep the memory, the accessors end with close().
class ChunkHandle {
 public:
  explicit ChunkHandle(Chunk chunk) : chunk_(std::move(chunk)) {}

  int table() const { return open().buffer->table(); }
  int64_t shard() const { return open().shard; }
  py::array rows() const { return view(py::dtype::of<int64_t>(), open().buffer->view().rows, {size()}); }
  py::array weight() const {
    const RowFormat& format = open().buffer->format();
    return view(array_dtype(format.dtype), chunk_.buffer->view().weight, {size(), format.dim});
  }
  py::object state() const {
    const int64_t columns = open().buffer->format().state_size;
    if (columns == 0) return py::none();
    const std::vector<int64_t> shape = columns == 1 ? std::vector<int64_t>{size()} : std::vector{size(), columns};
    return view(py::dtype::of<float>(), chunk_.buffer->view().state, shape);
  }
  py::array count() const { return view(py::dtype::of<uint32_t>(), open().buffer->view().words, {size()}); }
  void close() { chunk_.buffer.reset(); }

 private:
  const Chunk& open() const {
    if (chunk_.buffer == nullptr) throw std::invalid_argument("chunk: expected an open one, got one after close()");
    return chunk_;
  }
  int64_t size() const { return chunk_.end - chunk_.begin; }

  py::array view(const py::dtype& dtype, const void* data, const std::vector<int64_t>& shape) const {
    const int64_t row = shape.size() == 2 ? shape[1] : 1;
    auto* owner = new StagingPtr(chunk_.buffer);
    py::capsule capsule(owner, [](void* p) { delete static_cast<StagingPtr*>(p); });
    const char* first = static_cast<const char*>(data) + chunk_.begin * row * dtype.itemsize();
    py::array array(dtype, shape, first, capsule);
    array.attr("setflags")(py::arg("write") = false);
    return array;
  }

  Chunk chunk_;
};

std::optional<ChunkHandle> next_chunk(SnapshotHandle& snapshot, std::optional<double> timeout) {
  if (timeout.has_value() && !(*timeout >= 0.0)) {
    throw std::invalid_argument("timeout: expected at least 0 s, got " + std::to_string(*timeout));
  }
  Chunk chunk;
  bool found = false;
  {
    py::gil_scoped_release release;
    found = snapshot->next_chunk(timeout.value_or(-1.0), &chunk);
  }
  if (!found) return std::nullopt;
  return ChunkHandle(std::move(chunk));
}

std::unique_ptr<Gathering> gather(const SnapshotHandle& snapshot, int64_t max_bytes, std::vector<int64_t> shard_rows) {
  require(max_bytes >= 1, "max_bytes: expected at least 1, got " + std::to_string(max_bytes));
  require(!shard_rows.empty(), "shard_rows: expected one count a shard, got none");
  return std::make_unique<Gathering>(snapshot.shared(), max_bytes, std::move(shard_rows));
}

GatheredRows next_rows(Gathering& gathering) {
  std::optional<GatheredRows> rows;
  {
    const py::gil_scoped_release release;
    rows = gathering.next();
  }
  if (!rows.has_value()) throw py::stop_iteration();
  return std::move(*rows);
}

// May be called by two threads: the interpreter's lock orders the exchange.
void close_rows(GatheredRows& rows) {
  std::vector<Chunk> chunks = std::exchange(rows.chunks, {});
  const py::gil_scoped_release release;
  chunks.clear();
}

std::vector<store::SegmentTensor> tensors_of(const GatheredRows& rows, const std::vector<std::string>& names) {
  require(!rows.chunks.empty(), "rows: expected open ones, got rows after close()");
  const int last = rows.rows.rbegin()->first;
  require(static_cast<size_t>(last) < names.size(), "names: expected one for each table, at least " +
                                                        std::to_string(last + 1) + ", got " +
                                                        std::to_string(names.size()));
  return rows.tensors(names);
}

const char* status_name(SnapshotReader::Status status) {
  switch (status) {
    case SnapshotReader::Status::kWalking:
      return "walking";
    case SnapshotReader::Status::kComplete:
      return "complete";
    case SnapshotReader::Status::kFailed:
      return "failed";
    case SnapshotReader::Status::kCommitted:
      return "committed";
    case SnapshotReader::Status::kAborted:
      break;
  }
  return "aborted";
}

}  // namespace

void register_snapshot(py::module_& m) {
  py::class_<ChunkHandle>(m, "Chunk")
      .def_property_readonly("table", &ChunkHandle::table)
      .def_property_readonly("shard", &ChunkHandle::shard)
      .def_property_readonly("rows", &ChunkHandle::rows)
      .def_property_readonly("weight", &ChunkHandle::weight)
      .def_property_readonly("state", &ChunkHandle::state)
      .def_property_readonly("count", &ChunkHandle::count)
      .def("close", &ChunkHandle::close);

  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<GatheredRows>(m, "GatheredRows")
      .def_readonly("shard", &GatheredRows::shard)
      .def_readonly("nbytes", &GatheredRows::bytes)
      .def_readonly("lookups", &GatheredRows::lookups)
      .def_readonly("rows", &GatheredRows::rows)
      .def("tensors", &tensors_of, py::arg("names"))
      .def("close", &close_rows);
  py::class_<Gathering>(m, "Gathering")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &next_rows);

  py::class_<SnapshotHandle>(m, "Snapshot")
      .def_property_readonly("step", [](const SnapshotHandle& s) { return s->step(); })
      .def_property_readonly("status", [](const SnapshotHandle& s) { return status_name(s->status()); })
      .def_property_readonly("expected_rows", [](const SnapshotHandle& s) { return s->expected_rows(); })
      .def_property_readonly("rows_taken", [](const SnapshotHandle& s) { return s->rows_taken(); })
      .def_property_readonly("stall_seconds", [](const SnapshotHandle& s) { return s->stall_seconds(); })
      .def(
          "walk", [](SnapshotHandle& s) { s->start_walk(); }, release)
      .def("next_chunk", &next_chunk, py::arg("timeout") = py::none())
      .def("gather", &gather, py::arg("max_bytes"), py::arg("shard_rows"))
      .def(
          "commit", [](SnapshotHandle& s) { s->commit(); }, release)
      .def(
          "abort", [](SnapshotHandle& s) { s->abort(); }, release)
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__",
           [](SnapshotHandle& s) {
             std::optional<ChunkHandle> chunk = next_chunk(s, std::nullopt);
             if (!chunk.has_value()) throw py::stop_iteration();
             return std::move(*chunk);
           })
      .def("__enter__", [](py::object self) { return self; })
      .def(
          "__exit__",
          [](SnapshotHandle& s, const py::object&, const py::object&, const py::object&) {
            const py::gil_scoped_release unlocked;
            s->abort();
          },
          py::arg("exc_type"), py::arg("exc"), py::arg("traceback"));
}

}  // namespace cpr
