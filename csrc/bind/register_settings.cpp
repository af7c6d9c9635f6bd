// Values that calls of a collection take and give: tables, batches, selections.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <bit>
#include <cmath>
#include <memory>

#include "bind/checks.hpp"
#include "bind/register.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

TableSpec make_table(const std::string& name, int64_t num_embeddings, int64_t embedding_dim, const std::string& pooling,
                     int64_t row_offset, float init_min, float init_max, bool dirty, bool mfu, bool ssu, bool drift,
                     double ssu_fraction, int64_t ssu_period, const std::string& dtype, bool scale_grad_by_freq,
                     bool external) {
  const std::string where = "table '" + name + "': ";
  require(!name.empty(), "table name: expected at least one character");
  require(num_embeddings >= 1 && num_embeddings <= kMaxRows,
          where + "num_embeddings: expected 1 to 2^32 - 1, got " + std::to_string(num_embeddings));
  require(embedding_dim >= 1 && embedding_dim <= kMaxDim,
          where + "embedding_dim: expected 1 to 2^32 - 1, got " + std::to_string(embedding_dim));
  require(embedding_dim <= kMaxNumbers / num_embeddings, where + "expected at most 2^48 numbers, got " +
                                                             std::to_string(num_embeddings) + " rows of " +
                                                             std::to_string(embedding_dim));
  require(pooling == "sum" || pooling == "mean" || pooling == "max" || pooling == "none",
          where + "pooling: expected sum, mean, max or none, got " + pooling);
  require(row_offset >= 0 && row_offset <= INT64_MAX - num_embeddings,
          where + "row_offset: expected 0 to 2^63 - 1 - num_embeddings, got " + std::to_string(row_offset));
  require(std::isfinite(init_min) && std::isfinite(init_max) && init_min <= init_max,
          where + "init_min, init_max: expected finite init_min <= init_max, got " + std::to_string(init_min) + ", " +
              std::to_string(init_max));
  require(ssu_fraction > 0.0 && ssu_fraction <= 1.0,
          where + "ssu_fraction: expected 0 < fraction <= 1, got " + std::to_string(ssu_fraction));
  require(ssu_period >= 1 && ssu_period <= (1 << 20) && std::has_single_bit(static_cast<uint64_t>(ssu_period)),
          where + "ssu_period: expected a power of two from 1 to 2^20, got " + std::to_string(ssu_period));
  TableSpec spec;
  spec.name = name;
  spec.num_embeddings = num_embeddings;
  spec.embedding_dim = embedding_dim;
  spec.pooling = pooling == "sum"    ? Pooling::kSum
                 : pooling == "mean" ? Pooling::kMean
                 : pooling == "max"  ? Pooling::kMax
                                     : Pooling::kNone;
  spec.dtype = parse_dtype(dtype, where);
  spec.row_offset = row_offset;
  spec.init_min = init_min;
  spec.init_max = init_max;
  spec.track_dirty = dirty;
  spec.track_mfu = mfu;
  spec.track_ssu = ssu;
  spec.track_drift = drift;
  spec.ssu_fraction = ssu_fraction;
  spec.ssu_period = ssu_period;
  spec.scale_grad_by_freq = scale_grad_by_freq;
  spec.external = external;
  return spec;
}

const char* pooling_name(Pooling pooling) {
  return pooling == Pooling::kSum    ? "sum"
         : pooling == Pooling::kMean ? "mean"
         : pooling == Pooling::kMax  ? "max"
                                     : "none";
}

SelectionRequest select_rows(const py::array& mask) {
  if (mask.dtype().kind() != 'b') {
    throw py::type_error("mask: expected dtype bool, got " + std::string(py::str(mask.dtype())));
  }
  require(mask.ndim() == 1, "mask: expected 1 dimension, got " + std::to_string(mask.ndim()));
  const auto taken = mask.unchecked<uint8_t, 1>();
  auto rows = std::make_shared<RowMask>();
  rows->num_rows = taken.shape(0);
  rows->bits.resize(static_cast<size_t>((rows->num_rows + 7) / 8));
  for (int64_t row = 0; row < rows->num_rows; ++row) {
    if (taken(row) == 0) continue;
    rows->bits[static_cast<size_t>(row >> 3)] |= static_cast<uint8_t>(1 << (row & 7));
    ++rows->num_taken;
  }
  SelectionRequest request;
  request.kind = Select::kRows;
  request.mask = std::move(rows);
  return request;
}

}  // namespace

void register_settings(py::module_& m) {
  py::class_<TableSpec>(m, "TableSpec")
      .def(py::init(&make_table), py::kw_only(), py::arg("name"), py::arg("num_embeddings"), py::arg("embedding_dim"),
           py::arg("pooling") = "sum", py::arg("row_offset") = 0, py::arg("init_min"), py::arg("init_max"),
           py::arg("dirty") = true, py::arg("mfu") = true, py::arg("ssu") = true, py::arg("drift") = false,
           py::arg("ssu_fraction") = 0.125, py::arg("ssu_period") = 2, py::arg("dtype") = "float32",
           py::arg("scale_grad_by_freq") = false, py::arg("external") = false)
      .def_readonly("name", &TableSpec::name)
      .def_readonly("num_embeddings", &TableSpec::num_embeddings)
      .def_readonly("embedding_dim", &TableSpec::embedding_dim)
      .def_property_readonly("pooling", [](const TableSpec& s) { return pooling_name(s.pooling); })
      .def_property_readonly("dtype", [](const TableSpec& s) { return dtype_name(s.dtype); })
      .def_readonly("row_offset", &TableSpec::row_offset)
      .def_readonly("init_min", &TableSpec::init_min)
      .def_readonly("init_max", &TableSpec::init_max);
  py::class_<Batch, std::shared_ptr<Batch>>(m, "Batch")
      .def_property_readonly("num_ids", &Batch::num_ids)
      .def_property_readonly("batch_size", &Batch::batch_size);
  const auto highest = [](Select kind, int64_t rows) {
    require(rows >= 1, "rows: expected at least 1, got " + std::to_string(rows));
    return SelectionRequest{kind, rows};
  };
  py::class_<SelectionRequest>(m, "Selection")
      .def_static("none", [] { return SelectionRequest{Select::kNone}; })
      .def_static("all", [] { return SelectionRequest{Select::kAll}; })
      .def_static("dirty", [] { return SelectionRequest{Select::kDirty}; })
      .def_static("sampled", [] { return SelectionRequest{Select::kSampled}; })
      .def_static("rows", &select_rows, py::arg("mask"))
      .def_static(
          "most_used", [highest](int64_t rows) { return highest(Select::kMostUsed, rows); }, py::arg("rows"))
      .def_static(
          "most_drifted", [highest](int64_t rows) { return highest(Select::kMostDrifted, rows); }, py::arg("rows"));
}

}  // namespace cpr
