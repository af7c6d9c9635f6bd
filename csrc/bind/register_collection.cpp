#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "bind/checks.hpp"
#include "bind/lookup_arguments.hpp"
#include "bind/optimizer_spec.hpp"
#include "bind/register.hpp"
#include "bind/snapshot_arguments.hpp"
#include "bind/snapshot_handle.hpp"
#include "bind/tensor_ref.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

std::unique_ptr<Collection> make_collection(const std::vector<TableSpec>& tables, const std::vector<int64_t>& features,
                                            const std::string& optimizer, float learning_rate, float eps,
                                            float initial_state, double beta1, double beta2, float weight_decay,
                                            uint64_t seed, int64_t max_staging_bytes,
                                            const std::shared_ptr<Region>& region) {
  const OptimizerSpec spec{parse_optimizer(optimizer), learning_rate, eps, initial_state, beta1, beta2, weight_decay};
  check_optimizer(spec);
  check_tables(tables, features, spec, optimizer);
  for (const TableSpec& table : tables) {
    require(region == nullptr || spec.kind != Optimizer::kNone,
            "table '" + table.name + "': tables in shared memory need a fused optimizer, got none");
  }
  require(max_staging_bytes > 0, "max_staging_bytes: expected more than 0, got " + std::to_string(max_staging_bytes));
  py::gil_scoped_release release;
  return std::make_unique<Collection>(tables, features, spec, seed, max_staging_bytes, region);
}

InputShape input_shape(Collection& c) {
  InputShape shape{c.num_features(), c.output_dim(), c.unpooled(), c.wide(), ""};
  for (int64_t t = c.num_tables() - 1; t >= 0; --t) {
    if (c.table(t).spec().pooling != Pooling::kSum) shape.not_summed = c.table(t).spec().name;
  }
  return shape;
}

std::shared_ptr<Batch> lookup(Collection& c, const TensorRef& ids, const std::optional<TensorRef>& offsets,
                              const std::optional<TensorRef>& weights, const std::optional<TensorRef>& out, int threads,
                              bool keep, int64_t ids_per_bag) {
  LookupInput in = checked_input(input_shape(c), ids, offsets, weights, out, ids_per_bag);
  in.keep = keep;
  in.threads = std::clamp(threads, 1, kMaxThreads);
  py::gil_scoped_release release;
  std::shared_ptr<Batch> batch = c.lookup(in);
  return keep ? batch : nullptr;
}

const void* checked_grad(const Collection& c, const Batch& batch, const TensorRef& grad) {
  check_shape(grad, "grad", {batch.batch_size(), c.output_dim()});
  return data_as(grad, "grad", outer_dtype(c));
}

bool update(Collection& c, Batch& batch, const TensorRef& grad, int threads, float grad_scale,
            const std::vector<int64_t>& frozen, const std::optional<TensorRef>& multiplicity) {
  require(c.optimizer().kind != Optimizer::kNone, "update: expected a fused optimizer, got none; use gradient");
  const float* g = static_cast<const float*>(checked_grad(c, batch, grad));
  require(std::isfinite(grad_scale), "grad_scale: expected a finite value, got " + std::to_string(grad_scale));
  std::vector<bool> mask(static_cast<size_t>(c.num_tables()), false);
  for (const int64_t table : frozen) mask[static_cast<size_t>(check_table(c, table))] = true;
  const uint32_t* accesses = multiplicity.has_value() ? checked_multiplicity(batch, *multiplicity) : nullptr;
  py::gil_scoped_release release;
  return c.update(&batch, g, std::clamp(threads, 1, kMaxThreads), grad_scale, mask, accesses);
}

template <typename T>
py::tuple gradient_as(Collection& c, Batch& batch, const void* grad, int64_t table) {
  const size_t ids = static_cast<size_t>(c.ids_of_table(batch, table));
  const int64_t dim = c.table(table).dim();
  std::vector<int64_t> rows(ids);
  std::vector<T> values(ids * static_cast<size_t>(dim));
  int64_t n = 0;
  {
    py::gil_scoped_release release;
    n = c.gradient(&batch, grad, table, rows.data(), values.data());
  }
  rows.resize(static_cast<size_t>(n));
  values.resize(static_cast<size_t>(n * dim));
  return py::make_tuple(to_array(std::move(rows), {n}), to_array(std::move(values), {n, dim}));
}

py::tuple gradient(Collection& c, Batch& batch, const TensorRef& grad, int64_t table, int) {
  const void* g = checked_grad(c, batch, grad);
  check_table(c, table);
  return c.wide() ? gradient_as<double>(c, batch, g, table) : gradient_as<float>(c, batch, g, table);
}

py::dict memory(Collection& c) {
  int64_t weight = 0;
  int64_t state = 0;
  int64_t meta = 0;
  int64_t ssu = 0;
  int64_t saved = 0;
  for (int64_t t = 0; t < c.num_tables(); ++t) {
    if (!c.table(t).spec().external) weight += c.table(t).weight_bytes();
    state += c.table(t).state_bytes();
    meta += c.table(t).meta_bytes();
    ssu += c.table(t).ssu_bytes();
    if (c.table(t).saved() != nullptr) saved += c.table(t).weight_bytes();
  }
  py::dict bytes;
  bytes["weight"] = weight;
  bytes["state"] = state;
  bytes["metadata"] = meta;
  bytes["ssu"] = ssu;
  bytes["saved"] = saved;
  bytes["staging"] = c.staging().bytes_out();
  return bytes;
}

SnapshotHandle begin(Collection& c, const std::vector<SelectionRequest>& selections, bool clears_dirty,
                     const std::vector<ShardRows>& shard_rows, bool blocking, bool walk) {
  std::vector<const TableSpec*> tables;
  for (int64_t t = 0; t < c.num_tables(); ++t) tables.push_back(&c.table(t).spec());
  check_selections(tables, selections, blocking, walk);
  const std::vector<ShardRule> shards = shard_rules(tables, shard_rows);
  py::gil_scoped_release release;
  return SnapshotHandle(c.begin(selections, clears_dirty, shards, blocking, walk));
}

// A property that may be changed between updates.
template <typename T>
void def_scalar(py::class_<Collection>& c, const char* name, T OptimizerSpec::* member, void (*check)(const char*, T)) {
  c.def_property(
      name, [member](const Collection& self) { return self.optimizer().*member; },
      [name, member, check](Collection& self, T value) {
        check(name, value);
        self.optimizer().*member = value;
      });
}

}  // namespace

void register_collection(py::module_& m) {
  register_settings(m);
  py::class_<Collection> c(m, "Collection");
  register_region(m, c);
  c.def(py::init(&make_collection), py::arg("tables"), py::arg("features"), py::kw_only(), py::arg("optimizer"),
        py::arg("learning_rate"), py::arg("eps") = 1e-8F, py::arg("initial_state") = 0.0F, py::arg("beta1") = 0.9,
        py::arg("beta2") = 0.999, py::arg("weight_decay") = 0.0F, py::arg("seed") = 0,
        py::arg("max_staging_bytes") = int64_t{256} << 20, py::arg("region") = nullptr);
  def_scalar(c, "learning_rate", &OptimizerSpec::learning_rate, check_not_negative);
  def_scalar(c, "eps", &OptimizerSpec::eps, check_not_negative);
  def_scalar(c, "beta1", &OptimizerSpec::beta1, check_beta);
  def_scalar(c, "beta2", &OptimizerSpec::beta2, check_beta);
  def_scalar(c, "weight_decay", &OptimizerSpec::weight_decay, check_not_negative);
  c.def_property("step", &Collection::step, [](Collection& self, int64_t step) {
    require(step >= 0, "step: expected at least 0, got " + std::to_string(step));
    self.set_step(step);
  });
  def_max_stall_seconds(c);
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
        py::arg("grad_scale") = 1.0F, py::arg("frozen") = std::vector<int64_t>(), py::arg("multiplicity") = py::none());
  c.def("gradient", &gradient, py::arg("batch"), py::arg("grad"), py::kw_only(), py::arg("table"), py::arg("threads"));
  c.def(
      "per_sample_weight_grad",
      [](Collection& self, Batch& batch, const TensorRef& grad, const TensorRef& out, int threads) {
        const void* g = checked_grad(self, batch, grad);
        check_shape(out, "out", {batch.num_ids()});
        void* o = data_as(out, "out", outer_dtype(self));
        py::gil_scoped_release release;
        self.weight_grad(&batch, g, o, std::clamp(threads, 1, kMaxThreads));
      },
      py::arg("batch"), py::arg("grad"), py::arg("out"), py::kw_only(), py::arg("threads"));
  register_rows(c);
  register_outside(c);
  c.def("begin", &begin, py::arg("selections"), py::kw_only(), py::arg("clears_dirty"),
        py::arg("shard_rows") = std::vector<ShardRows>(), py::arg("blocking") = false, py::arg("walk") = true,
        py::keep_alive<0, 1>());
  c.def("memory", &memory);
  c.def("close", &Collection::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace cpr
