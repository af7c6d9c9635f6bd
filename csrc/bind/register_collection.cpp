#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <cmath>
#include <memory>
#include <set>

#include "bind/register.hpp"
#include "bind/snapshot_handle.hpp"
#include "bind/tensor_ref.hpp"
#include "core/errors.hpp"
#include "table/collection.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

using Rows = py::array_t<int64_t>;

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

TableSpec make_table(const std::string& name, int64_t num_embeddings, int64_t embedding_dim, const std::string& pooling,
                     int64_t row_offset, float init_min, float init_max, bool dirty, bool mfu, bool ssu,
                     double ssu_fraction, int64_t ssu_period) {
  const std::string where = "table '" + name + "': ";
  require(!name.empty(), "table name: expected at least one character");
  require(num_embeddings >= 1 && num_embeddings <= kMaxRows,
          where + "num_embeddings: expected 1 to 2^32, got " + std::to_string(num_embeddings));
  require(embedding_dim >= 1 && embedding_dim <= (1 << 20),
          where + "embedding_dim: expected 1 to 2^20, got " + std::to_string(embedding_dim));
  require(pooling == "sum" || pooling == "mean", where + "pooling: expected sum or mean, got " + pooling);
  require(row_offset >= 0, where + "row_offset: expected at least 0, got " + std::to_string(row_offset));
  require(std::isfinite(init_min) && std::isfinite(init_max) && init_min <= init_max,
          where + "init_min, init_max: expected finite init_min <= init_max, got " + std::to_string(init_min) + ", " +
              std::to_string(init_max));
  require(ssu_fraction > 0.0 && ssu_fraction <= 1.0,
          where + "ssu_fraction: expected 0 < fraction <= 1, got " + std::to_string(ssu_fraction));
  require(ssu_period >= 1 && ssu_period <= (1 << 20) && std::has_single_bit(static_cast<uint64_t>(ssu_period)),
          where + "ssu_period: expected a power of two from 1 to 2^20, got " + std::to_string(ssu_period));
  return {name,          num_embeddings,
          embedding_dim, pooling == "mean" ? Pooling::kMean : Pooling::kSum,
          row_offset,    init_min,
          init_max,      dirty,
          mfu,           ssu,
          ssu_fraction,  ssu_period};
}

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

int64_t check_table(const Collection& c, int64_t table) {
  if (table < 0 || table >= c.num_tables()) {
    throw std::out_of_range("table: expected 0 <= table < " + std::to_string(c.num_tables()) + ", got " +
                            std::to_string(table));
  }
  return table;
}

// Global [begin, end) of one table.
void check_range(Collection& c, int64_t table, int64_t begin, int64_t end) {
  const TableSpec& spec = c.table(check_table(c, table)).spec();
  if (begin < spec.row_offset || end < begin || end > spec.row_offset + spec.num_embeddings) {
    throw std::out_of_range("rows: expected a range within [" + std::to_string(spec.row_offset) + ", " +
                            std::to_string(spec.row_offset + spec.num_embeddings) + ") for table '" + spec.name +
                            "', got [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  }
}

std::shared_ptr<Batch> lookup(Collection& c, const TensorRef& ids, const std::optional<TensorRef>& offsets,
                              const std::optional<TensorRef>& weights, const TensorRef& out, int threads, bool keep,
                              int64_t ids_per_bag) {
  LookupInput in;
  in.ids_are_64bit = is_64bit(ids, "ids");
  in.ids = reinterpret_cast<const void*>(ids.address);
  check_shape(ids, "ids", {ids.size()});
  in.num_ids = ids.size();
  require(in.num_ids < kMaxIds, "ids: expected fewer than 2^32, got " + std::to_string(in.num_ids));
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
  in.threads = std::max(1, std::min(threads, 256));
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
  return c.update(&batch, g, std::max(1, std::min(threads, 256)), grad_scale, mask);
}

template <typename T>
py::array_t<T> to_array(std::vector<T> values, std::vector<int64_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(shape, owned->data(), owner);
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

// Keeps a Python object alive from C++; lets go of it with the GIL held.
std::shared_ptr<void> hold(py::object object) {
  return std::shared_ptr<void>(object.release().ptr(), [](void* p) {
    const py::gil_scoped_acquire acquire;
    Py_DECREF(static_cast<PyObject*>(p));
  });
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

void register_values(py::module_& m) {
  py::class_<TableSpec>(m, "TableSpec")
      .def(py::init(&make_table), py::kw_only(), py::arg("name"), py::arg("num_embeddings"), py::arg("embedding_dim"),
           py::arg("pooling") = "sum", py::arg("row_offset") = 0, py::arg("init_min"), py::arg("init_max"),
           py::arg("dirty") = true, py::arg("mfu") = true, py::arg("ssu") = true, py::arg("ssu_fraction") = 0.125,
           py::arg("ssu_period") = 2)
      .def_readonly("name", &TableSpec::name)
      .def_readonly("num_embeddings", &TableSpec::num_embeddings)
      .def_readonly("embedding_dim", &TableSpec::embedding_dim)
      .def_property_readonly("pooling", [](const TableSpec& s) { return s.pooling == Pooling::kMean ? "mean" : "sum"; })
      .def_readonly("row_offset", &TableSpec::row_offset)
      .def_readonly("init_min", &TableSpec::init_min)
      .def_readonly("init_max", &TableSpec::init_max);
  py::class_<Batch, std::shared_ptr<Batch>>(m, "Batch")
      .def_property_readonly("num_ids", &Batch::num_ids)
      .def_property_readonly("batch_size", &Batch::batch_size);
  const auto most_used = [](int64_t rows) {
    require(rows >= 1, "rows: expected at least 1, got " + std::to_string(rows));
    return SelectionRequest{Select::kMostUsed, rows};
  };
  py::class_<SelectionRequest>(m, "Selection")
      .def_static("none", [] { return SelectionRequest{Select::kNone, 0}; })
      .def_static("all", [] { return SelectionRequest{Select::kAll, 0}; })
      .def_static("dirty", [] { return SelectionRequest{Select::kDirty, 0}; })
      .def_static("sampled", [] { return SelectionRequest{Select::kSampled, 0}; })
      .def_static("most_used", most_used, py::arg("rows"));
}

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
        const Table& t = self.table(check_table(self, table));
        py::array_t<uint32_t> words(t.num_rows());
        for (int64_t row = 0; row < t.num_rows(); ++row) words.mutable_data()[row] = t.word(row);
        return words;
      },
      py::arg("table"));
  c.def(
      "set_trackers",
      [](Collection& self, int64_t table, const TensorRef& words) {
        check_shape(words, "words", {self.table(check_table(self, table)).num_rows()});
        self.set_trackers(table, data_of<uint32_t>(words, "words", "uint32"));
      },
      py::arg("table"), py::arg("words"));
  c.def(
      "sampled_rows",
      [](Collection& self, int64_t table) {
        std::vector<int64_t> rows = self.table(check_table(self, table)).listed_rows();
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

}  // namespace

void register_collection(py::module_& m) {
  register_values(m);
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
        self.weight_grad(&batch, g, o, std::max(1, std::min(threads, 256)));
      },
      py::arg("batch"), py::arg("grad"), py::arg("out"), py::kw_only(), py::arg("threads"));
  register_rows(c);
  c.def("begin", &begin, py::arg("selections"), py::kw_only(), py::arg("clears_dirty"),
        py::arg("shard_rows") = std::vector<int64_t>(), py::arg("blocking") = false, py::keep_alive<0, 1>());
  c.def("memory", &memory);
  c.def("close", &Collection::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace cpr
