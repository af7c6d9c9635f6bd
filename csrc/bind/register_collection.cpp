#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "bind/checks.hpp"
#include "bind/register.hpp"
#include "bind/snapshot_handle.hpp"
#include "bind/tensor_ref.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

OptimizerSpec make_optimizer(const std::string& name, float learning_rate, float eps, float initial_state) {
  OptimizerSpec spec;
  if (name == "sgd") {
    spec.kind = Optimizer::kSgd;
  } else if (name == "row_wise_adagrad") {
    spec.kind = Optimizer::kRowWiseAdagrad;
  } else {
    require(name == "none", "optimizer: expected sgd, row_wise_adagrad or none, got " + name);
  }
  require(std::isfinite(learning_rate) && learning_rate >= 0.0F,
          "learning_rate: expected a finite value >= 0, got " + std::to_string(learning_rate));
  require(std::isfinite(eps) && eps >= 0.0F, "eps: expected a finite value >= 0, got " + std::to_string(eps));
  require(std::isfinite(initial_state) && initial_state >= 0.0F,
          "initial_state: expected a finite value >= 0, got " + std::to_string(initial_state));
  spec.learning_rate = learning_rate;
  spec.eps = eps;
  spec.initial_state = initial_state;
  return spec;
}

std::unique_ptr<Collection> make_collection(const std::vector<TableSpec>& tables, const std::vector<int64_t>& features,
                                            const std::string& optimizer, float learning_rate, float eps,
                                            float initial_state, uint64_t seed, int64_t max_staging_bytes) {
  require(!tables.empty(), "tables: expected at least one");
  std::set<std::string> names;
  for (const TableSpec& spec : tables) {
    require(names.insert(spec.name).second, "tables: expected unique names, got '" + spec.name + "' twice");
  }
  for (const int64_t table : features) {
    require(
        table >= 0 && table < static_cast<int64_t>(tables.size()),
        "features: expected table numbers below " + std::to_string(tables.size()) + ", got " + std::to_string(table));
  }
  require(max_staging_bytes > 0, "max_staging_bytes: expected more than 0, got " + std::to_string(max_staging_bytes));
  const OptimizerSpec spec = make_optimizer(optimizer, learning_rate, eps, initial_state);
  py::gil_scoped_release release;
  return std::make_unique<Collection>(tables, features, spec, seed, max_staging_bytes);
}

std::shared_ptr<Batch> lookup(Collection& c, const TensorRef& ids, const std::optional<TensorRef>& offsets,
                              const std::optional<TensorRef>& weights, const TensorRef& out, int threads, bool keep,
                              int64_t ids_per_bag) {
  LookupInput in;
  in.ids_are_64bit = is_64bit(ids, "ids");
  in.ids = reinterpret_cast<const void*>(ids.address);
  check_shape(ids, "ids", {ids.size()});
  in.num_ids = ids.size();
  require(in.num_ids < kMaxIds, "ids: expected fewer than 2^31, got " + std::to_string(in.num_ids));
  const int64_t features = c.num_features();
  require(out.shape.size() == 2, "out: expected two dimensions, got shape " + describe(out.shape));
  in.batch_size = out.shape[0];
  in.out = data_of<float>(out, "out", "float32");
  check_shape(out, "out", {in.batch_size, c.output_dim()});
  if (offsets.has_value()) {
    in.offsets_are_64bit = is_64bit(*offsets, "offsets");
    in.offsets = reinterpret_cast<const void*>(offsets->address);
    check_shape(*offsets, "offsets", {features * in.batch_size + 1});
  } else {
    in.ids_per_bag = ids_per_bag;
    require(ids_per_bag >= 0 && ids_per_bag * features * in.batch_size == in.num_ids,
            "ids: expected " + std::to_string(features) + " features * " + std::to_string(in.batch_size) + " bags * " +
                std::to_string(ids_per_bag) + " ids, got " + std::to_string(in.num_ids));
  }
  if (weights.has_value()) {
    in.per_sample_weights = data_of<float>(*weights, "per_sample_weights", "float32");
    check_shape(*weights, "per_sample_weights", {in.num_ids});
    for (int64_t t = 0; t < c.num_tables(); ++t) {
      require(c.table(t).spec().pooling == Pooling::kSum,
              "per_sample_weights: expected sum pooling, got mean for table '" + c.table(t).spec().name + "'");
    }
  }
  in.keep = keep;
  in.threads = std::clamp(threads, 1, kMaxThreads);
  py::gil_scoped_release release;
  std::shared_ptr<Batch> batch = c.lookup(in);
  return keep ? batch : nullptr;
}

const float* checked_grad(const Collection& c, const Batch& batch, const TensorRef& grad) {
  check_shape(grad, "grad", {batch.batch_size(), c.output_dim()});
  return data_of<float>(grad, "grad", "float32");
}

bool update(Collection& c, Batch& batch, const TensorRef& grad, int threads, float grad_scale,
            const std::vector<int64_t>& frozen) {
  require(c.optimizer().kind != Optimizer::kNone, "update: expected a fused optimizer, got none; use gradient");
  const float* g = checked_grad(c, batch, grad);
  require(std::isfinite(grad_scale), "grad_scale: expected a finite value, got " + std::to_string(grad_scale));
  std::vector<bool> mask(static_cast<size_t>(c.num_tables()), false);
  for (const int64_t table : frozen) mask[static_cast<size_t>(check_table(c, table))] = true;
  py::gil_scoped_release release;
  return c.update(&batch, g, std::clamp(threads, 1, kMaxThreads), grad_scale, mask);
}

py::tuple gradient(Collection& c, Batch& batch, const TensorRef& grad, int64_t table, int) {
  const float* g = checked_grad(c, batch, grad);
  check_table(c, table);
  std::vector<int64_t> rows;
  std::vector<float> values;
  int64_t n = 0;
  {
    py::gil_scoped_release release;
    n = c.gradient(&batch, g, table, &rows, &values);
  }
  return py::make_tuple(to_array(std::move(rows), {n}), to_array(std::move(values), {n, c.table(table).dim()}));
}

py::dict memory(Collection& c) {
  int64_t weight = 0;
  int64_t meta = 0;
  int64_t ssu = 0;
  for (int64_t t = 0; t < c.num_tables(); ++t) {
    weight += c.table(t).weight_bytes();
    meta += c.table(t).meta_bytes();
    ssu += c.table(t).ssu_bytes();
  }
  py::dict bytes;
  bytes["weight"] = weight;
  bytes["metadata"] = meta;
  bytes["ssu"] = ssu;
  bytes["staging"] = c.staging().bytes_out();
  return bytes;
}

SnapshotHandle begin(Collection& c, const std::vector<SelectionRequest>& selections, bool clears_dirty,
                     const std::vector<int64_t>& shard_rows, bool blocking) {
  const auto tables = static_cast<size_t>(c.num_tables());
  require(selections.size() == tables, "selections: expected one for each of " + std::to_string(tables) +
                                           " tables, got " + std::to_string(selections.size()));
  require(shard_rows.empty() || shard_rows.size() == tables, "shard_rows: expected none or one for each of " +
                                                                 std::to_string(tables) + " tables, got " +
                                                                 std::to_string(shard_rows.size()));
  for (const int64_t rows : shard_rows) {
    require(rows >= 1, "shard_rows: expected at least 1, got " + std::to_string(rows));
  }
  for (size_t t = 0; t < tables; ++t) {
    const TableSpec& spec = c.table(static_cast<int64_t>(t)).spec();
    const Select kind = selections[t].kind;
    require((kind != Select::kDirty || spec.track_dirty) && (kind != Select::kMostUsed || spec.track_mfu) &&
                (kind != Select::kSampled || spec.track_ssu),
            "selections: table '" + spec.name + "' doesn't track what its selection asks for");
  }
  py::gil_scoped_release release;
  return SnapshotHandle(c.begin(selections, clears_dirty, shard_rows, blocking));
}

}  // namespace

void register_collection(py::module_& m) {
  register_settings(m);
  py::class_<Collection> c(m, "Collection");
  c.def(py::init(&make_collection), py::arg("tables"), py::arg("features"), py::kw_only(), py::arg("optimizer"),
        py::arg("learning_rate"), py::arg("eps") = 1e-8F, py::arg("initial_state") = 0.0F, py::arg("seed") = 0,
        py::arg("max_staging_bytes") = int64_t{256} << 20);
  c.def_property(
      "learning_rate", [](const Collection& self) { return self.optimizer().learning_rate; },
      [](Collection& self, float rate) {
        require(std::isfinite(rate) && rate >= 0.0F,
                "learning_rate: expected a finite value >= 0, got " + std::to_string(rate));
        self.set_learning_rate(rate);
      });
  c.def_property("step", &Collection::step, [](Collection& self, int64_t step) {
    require(step >= 0, "step: expected at least 0, got " + std::to_string(step));
    self.set_step(step);
  });
  c.def_property_readonly("tables", [](Collection& self) {
    std::vector<TableSpec> specs;
    for (int64_t t = 0; t < self.num_tables(); ++t) specs.push_back(self.table(t).spec());
    return specs;
  });
  c.def_property_readonly("output_dim", &Collection::output_dim);
  c.def_property_readonly("skipped_steps", &Collection::skipped_steps);
  c.def("lookup", &lookup, py::arg("ids"), py::arg("offsets"), py::arg("per_sample_weights"), py::arg("out"),
        py::kw_only(), py::arg("threads"), py::arg("keep"), py::arg("ids_per_bag") = 0);
  c.def("update", &update, py::arg("batch"), py::arg("grad"), py::kw_only(), py::arg("threads"),
        py::arg("grad_scale") = 1.0F, py::arg("frozen") = std::vector<int64_t>());
  c.def("gradient", &gradient, py::arg("batch"), py::arg("grad"), py::kw_only(), py::arg("table"), py::arg("threads"));
  c.def(
      "per_sample_weight_grad",
      [](Collection& self, Batch& batch, const TensorRef& grad, const TensorRef& out, int threads) {
        const float* g = checked_grad(self, batch, grad);
        check_shape(out, "out", {batch.num_ids()});
        float* o = data_of<float>(out, "out", "float32");
        py::gil_scoped_release release;
        self.weight_grad(&batch, g, o, std::clamp(threads, 1, kMaxThreads));
      },
      py::arg("batch"), py::arg("grad"), py::arg("out"), py::kw_only(), py::arg("threads"));
  register_rows(c);
  c.def("begin", &begin, py::arg("selections"), py::kw_only(), py::arg("clears_dirty"),
        py::arg("shard_rows") = std::vector<int64_t>(), py::arg("blocking") = false, py::keep_alive<0, 1>());
  c.def("memory", &memory);
  c.def("close", &Collection::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace cpr
