#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "bind/checks.hpp"
#include "bind/lookup_arguments.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "table/route.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // by shard

// The ranges as ascending pieces; every row must be in one.
std::vector<Piece> pieces_of(const TableSpec& spec, const Ranges& ranges) {
  const std::string where = "ranges of table '" + spec.name + "': ";
  std::vector<Piece> pieces;
  for (size_t s = 0; s < ranges.size(); ++s) {
    const auto [begin, end] = ranges[s];
    require(begin <= end && end - begin < kMaxIds, where + "expected begin <= end and fewer than 2^31 rows, got [" +
                                                       std::to_string(begin) + ", " + std::to_string(end) +
                                                       ") for shard " + std::to_string(s));
    if (begin < end) pieces.push_back({begin, end, static_cast<int64_t>(s)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  int64_t row = 0;
  for (const Piece& piece : pieces) {
    require(piece.begin == row, where + "expected every row in one shard, got row " +
                                    std::to_string(std::min(row, piece.begin)) +
                                    (piece.begin < row ? " in several" : " in none"));
    row = piece.end;
  }
  require(row == spec.num_embeddings, where + "expected them to end at row " + std::to_string(spec.num_embeddings) +
                                          ", got " + std::to_string(row));
  return pieces;
}

std::shared_ptr<Router> make_router(const std::vector<TableSpec>& specs, const std::vector<int64_t>& features,
                                    const std::vector<Ranges>& ranges) {
  require(!specs.empty(), "tables: expected at least one");
  require(ranges.size() == specs.size(), "ranges: expected one for each of " + std::to_string(specs.size()) +
                                             " tables, got " + std::to_string(ranges.size()));
  const size_t shards = ranges.front().size();
  require(shards >= 1, "ranges: expected at least one shard");
  std::vector<RouteTable> tables;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TableSpec& spec = specs[t];
    require(ranges[t].size() == shards, "ranges of table '" + spec.name + "': expected one for each of " +
                                            std::to_string(shards) + " shards, got " +
                                            std::to_string(ranges[t].size()));
    require(spec.pooling != Pooling::kNone && spec.dtype != DType::kFloat64,
            "table '" + spec.name + "': expected pooling sum, mean or max and no float64");
    tables.push_back({spec, pieces_of(spec, ranges[t])});
  }
  for (const int64_t table : features) {
    require(
        table >= 0 && table < static_cast<int64_t>(specs.size()),
        "features: expected table numbers below " + std::to_string(specs.size()) + ", got " + std::to_string(table));
  }
  require(!features.empty(), "features: expected at least one");
  return std::make_shared<Router>(std::move(tables), features, static_cast<int64_t>(shards));
}

LookupInput input_of(const Router& router, const TensorRef& ids, const TensorRef& offsets) {
  LookupInput in;
  take_ids(ids, &in);
  take_offsets(offsets, &in);
  const int64_t features = router.num_features();
  const int64_t bags = offsets.size() - 1;
  require(bags >= 0 && bags % features == 0, "offsets: expected features * batch + 1 elements with " +
                                                 std::to_string(features) + " features, got " +
                                                 std::to_string(offsets.size()));
  in.batch_size = bags / features;
  return in;
}

std::shared_ptr<Routed> route(Router& router, const TensorRef& ids, const TensorRef& offsets, int threads) {
  LookupInput in = input_of(router, ids, offsets);
  in.threads = std::clamp(threads, 1, kMaxThreads);
  py::gil_scoped_release release;
  return router.route(in);
}

const ShardRows& shard_of(const Routed& batch, int64_t shard) {
  if (shard < 0 || shard >= batch.router().num_shards()) {
    throw std::out_of_range("shard: expected 0 <= shard < " + std::to_string(batch.router().num_shards()) + ", got " +
                            std::to_string(shard));
  }
  return batch.shard(shard);
}

template <typename T>
py::array_t<T> copy_of(std::vector<T> values) {
  const int64_t n = static_cast<int64_t>(values.size());
  return to_array(std::move(values), {n});
}

void fill(Routed& batch, int64_t shard, const TensorRef& values, int threads) {
  const ShardRows& rows = shard_of(batch, shard);
  const auto* floats = data_of<const float>(values, "values", "float32");
  check_shape(values, "values", {rows.floats.back()});
  py::gil_scoped_release release;
  batch.fill(shard, floats, std::clamp(threads, 1, kMaxThreads));
}

void pool(Routed& batch, const std::optional<TensorRef>& weights, const TensorRef& out, int threads) {
  auto* floats = data_of<float>(out, "out", "float32");
  check_shape(out, "out", {batch.batch_size(), batch.router().output_dim()});
  const float* scales = nullptr;
  if (weights.has_value()) {
    scales = data_of<const float>(*weights, "per_sample_weights", "float32");
    check_shape(*weights, "per_sample_weights", {batch.num_ids()});
    require(batch.router().only_sums(), "per_sample_weights: expected sum pooling, got mean or max for some table");
  }
  py::gil_scoped_release release;
  batch.pool(scales, floats, std::clamp(threads, 1, kMaxThreads));
}

const float* checked_grad(const Routed& batch, const TensorRef& grad) {
  check_shape(grad, "grad", {batch.batch_size(), batch.router().output_dim()});
  return data_of<const float>(grad, "grad", "float32");
}

py::object gradient(Routed& batch, const TensorRef& grad, int threads, float grad_scale) {
  const float* g = checked_grad(batch, grad);
  require(std::isfinite(grad_scale), "grad_scale: expected a finite value, got " + std::to_string(grad_scale));
  std::vector<ShardGradient> gradients;
  {
    py::gil_scoped_release release;
    gradients = batch.gradient(g, grad_scale, std::clamp(threads, 1, kMaxThreads));
  }
  if (gradients.empty()) return py::none();
  py::list arrays;
  for (ShardGradient& each : gradients) {
    auto* owned = new std::shared_ptr<HugeBuffer>(std::move(each.memory));
    py::capsule owner(owned, [](void* p) { delete static_cast<std::shared_ptr<HugeBuffer>*>(p); });
    arrays.append(py::array_t<float>({each.floats}, static_cast<float*>((*owned)->data()), owner));
  }
  return arrays;
}

void weight_grad(Routed& batch, const TensorRef& grad, const TensorRef& out, int threads) {
  const float* g = checked_grad(batch, grad);
  auto* floats = data_of<float>(out, "out", "float32");
  check_shape(out, "out", {batch.num_ids()});
  py::gil_scoped_release release;
  batch.weight_grad(g, floats, std::clamp(threads, 1, kMaxThreads));
}

}  // namespace

void register_route(py::module_& m) {
  py::class_<Routed, std::shared_ptr<Routed>>(m, "RoutedBatch")
      .def_property_readonly("num_ids", &Routed::num_ids)
      .def_property_readonly("batch_size", &Routed::batch_size)
      .def(
          "counts", [](const Routed& self, int64_t shard) { return copy_of(shard_of(self, shard).counts); },
          py::arg("shard"))
      .def(
          "rows", [](const Routed& self, int64_t shard) { return copy_of(shard_of(self, shard).rows); },
          py::arg("shard"))
      .def(
          "multiplicity", [](const Routed& self, int64_t shard) { return copy_of(shard_of(self, shard).multiplicity); },
          py::arg("shard"))
      .def("index", [](const Routed& self) { return copy_of(self.index()); })
      .def(
          "matches",
          [](const Routed& self, const TensorRef& ids, const TensorRef& offsets) {
            return self.matches(input_of(self.router(), ids, offsets));
          },
          py::arg("ids"), py::arg("offsets"))
      .def("fill", &fill, py::arg("shard"), py::arg("values"), py::kw_only(), py::arg("threads"))
      .def("pool", &pool, py::arg("per_sample_weights"), py::arg("out"), py::kw_only(), py::arg("threads"))
      .def("gradient", &gradient, py::arg("grad"), py::kw_only(), py::arg("threads"), py::arg("grad_scale") = 1.0F)
      .def("per_sample_weight_grad", &weight_grad, py::arg("grad"), py::arg("out"), py::kw_only(), py::arg("threads"));
  py::class_<Router, std::shared_ptr<Router>>(m, "Router")
      .def(py::init(&make_router), py::arg("tables"), py::arg("features"), py::arg("ranges"))
      .def_property_readonly("output_dim", &Router::output_dim)
      .def("route", &route, py::arg("ids"), py::arg("offsets"), py::kw_only(), py::arg("threads"));
}

}  // namespace cpr
