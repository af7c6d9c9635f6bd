#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bind/checks.hpp"
#include "bind/device_arguments.hpp"
#include "bind/lookup_arguments.hpp"
#include "bind/optimizer_spec.hpp"
#include "bind/register.hpp"
#include "bind/tensor_ref.hpp"
#include "core/errors.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "table/device_collection.hpp"
#ifdef CPR_CUDA
#include "cuda/cuda_device.hpp"
#endif
#ifdef CPR_HOST_DEVICE
#include "cuda/host_device.hpp"
#endif

namespace py = pybind11;

namespace cpr {
namespace {

using cuda::Stream;

std::unique_ptr<DeviceCollection> make_collection(const std::vector<TableSpec>& tables,
                                                  const std::vector<int64_t>& features,
                                                  std::shared_ptr<cuda::Device> device, const std::string& optimizer,
                                                  float learning_rate, float eps, float initial_state, double beta1,
                                                  double beta2, float weight_decay, uint64_t seed) {
  const OptimizerSpec spec{parse_optimizer(optimizer), learning_rate, eps, initial_state, beta1, beta2, weight_decay};
  check_optimizer(spec);
  check_tables(tables, features, spec, optimizer);
  return std::make_unique<DeviceCollection>(tables, features, spec, seed, std::move(device));
}

py::dict needs(const DeviceCollection& c, int64_t table) {
  const DeviceNeeds needs = c.needs(checked_table(c, table));
  py::dict bytes;
  bytes["weight"] = needs.weight;
  bytes["arrays"] = std::vector<int64_t>(static_cast<size_t>(needs.arrays), needs.array);
  bytes["metadata"] = needs.metadata;
  bytes["slots"] = needs.slots;
  bytes["claims"] = needs.slots;
  return bytes;
}

// Memory for the rows of a table; bfloat16 also as its bit patterns.
void* checked_weight(const DeviceCollection& c, int64_t table, const TensorRef& weight) {
  const TableSpec& spec = c.spec(checked_table(c, table));
  check_shape(weight, "weight", {spec.num_embeddings, spec.embedding_dim});
  require(weight.dtype == dtype_name(spec.dtype) || (spec.dtype == DType::kBFloat16 && weight.dtype == "uint16"),
          std::string("weight: expected dtype ") + dtype_name(spec.dtype) + ", got " + weight.dtype);
  return checked_memory(weight, "weight", c.needs(table).weight);
}

void bind(DeviceCollection& c, int64_t table, const TensorRef& weight, const std::vector<TensorRef>& arrays,
          const TensorRef& metadata, const TensorRef& slots, const TensorRef& claims, const py::object& owner) {
  const DeviceNeeds needs = c.needs(checked_table(c, table));
  void* rows = checked_weight(c, table, weight);
  require(static_cast<int>(arrays.size()) == needs.arrays,
          "arrays: expected " + std::to_string(needs.arrays) + ", got " + std::to_string(arrays.size()));
  DeviceMemory memory;
  memory.weight = rows;
  for (const TensorRef& array : arrays) {
    memory.arrays.push_back(static_cast<float*>(checked_memory(array, "arrays", needs.array)));
  }
  memory.metadata = static_cast<char*>(checked_memory(metadata, "metadata", needs.metadata));
  memory.slots = static_cast<uint32_t*>(checked_memory(slots, "slots", needs.slots));
  memory.claims = static_cast<uint32_t*>(checked_memory(claims, "claims", needs.slots));
  c.bind(table, memory, owner_of(owner));
}

void bind_weight(DeviceCollection& c, int64_t table, const TensorRef& weight, const py::object& owner, Stream stream) {
  void* rows = checked_weight(c, table, weight);
  std::shared_ptr<void> held = owner_of(owner);
  py::gil_scoped_release release;
  c.bind_weight(table, rows, std::move(held), stream);
}

InputShape input_shape(const DeviceCollection& c) {
  const Layout& layout = c.layout();
  InputShape shape{c.num_features(), layout.output_dim, layout.unpooled, layout.wide, ""};
  for (int64_t t = c.num_tables() - 1; t >= 0; --t) {
    if (c.spec(t).pooling != Pooling::kSum) shape.not_summed = c.spec(t).name;
  }
  return shape;
}

std::shared_ptr<DeviceBatch> lookup(DeviceCollection& c, const TensorRef& ids, const std::optional<TensorRef>& offsets,
                                    const std::optional<TensorRef>& weights, const std::optional<TensorRef>& out,
                                    const std::optional<TensorRef>& memory, const py::object& owner, Stream stream,
                                    int64_t ids_per_bag) {
  LookupInput in = checked_input(input_shape(c), ids, offsets, weights, out, ids_per_bag);
  in.keep = memory.has_value();
  void* kept = nullptr;
  if (in.keep) kept = checked_memory(*memory, "memory", c.batch_bytes(in.num_ids, in.batch_size, weights.has_value()));
  const std::shared_ptr<void> held = in.keep ? owner_of(owner) : nullptr;
  py::gil_scoped_release release;
  return c.lookup(in, kept, held, stream);
}

void weight_grad(DeviceCollection& c, const DeviceBatch& batch, const TensorRef& grad, const TensorRef& out,
                 Stream stream) {
  const char* outer = c.layout().wide ? "float64" : "float32";
  require(batch.weighted, "per_sample_weight_grad: expected a batch with per-sample weights");
  check_shape(grad, "grad", {batch.batch_size, c.layout().output_dim});
  check_shape(out, "out", {batch.num_ids});
  const void* g = data_as(grad, "grad", outer);
  void* to = data_as(out, "out", outer);
  py::gil_scoped_release release;
  c.weight_grad(batch, g, to, stream);
}

void update(DeviceCollection& c, DeviceBatch& batch, const TensorRef& grad, const TensorRef& memory, float grad_scale,
            const std::vector<int64_t>& frozen, Stream stream) {
  require(c.optimizer().kind != Optimizer::kNone, "update: expected a fused optimizer, got none");
  check_shape(grad, "grad", {batch.batch_size, c.layout().output_dim});
  const auto* g = data_of<const float>(grad, "grad", "float32");
  require(std::isfinite(grad_scale), "grad_scale: expected a finite value, got " + std::to_string(grad_scale));
  std::vector<bool> mask(static_cast<size_t>(c.num_tables()), false);
  for (const int64_t table : frozen) mask[static_cast<size_t>(checked_table(c, table))] = true;
  void* workspace = checked_memory(memory, "memory", c.update_bytes(batch.num_ids));
  py::gil_scoped_release release;
  c.update(&batch, g, grad_scale, mask, workspace, stream);
}

template <typename T>
void def_scalar(py::class_<DeviceCollection>& c, const char* name, T OptimizerSpec::* member) {
  c.def_property_readonly(name, [member](const DeviceCollection& self) { return self.optimizer().*member; });
}

void set_optimizer(DeviceCollection& c, Stream stream, std::optional<float> learning_rate, std::optional<float> eps,
                   std::optional<double> beta1, std::optional<double> beta2, std::optional<float> weight_decay) {
  OptimizerSpec spec = c.optimizer();
  spec.learning_rate = learning_rate.value_or(spec.learning_rate);
  spec.eps = eps.value_or(spec.eps);
  spec.beta1 = beta1.value_or(spec.beta1);
  spec.beta2 = beta2.value_or(spec.beta2);
  spec.weight_decay = weight_decay.value_or(spec.weight_decay);
  check_optimizer(spec);
  c.set_optimizer(spec, stream);
}

std::shared_ptr<cuda::Device> cuda_device(int index) {
  const cuda::Driver found = cuda::find_devices();
  if (!found.why_not.empty()) throw Error("cuda_device: " + found.why_not);
  const auto devices = static_cast<int>(found.devices.size());
  require(index >= 0 && index < devices,
          "index: expected 0 <= index < " + std::to_string(devices) + ", got " + std::to_string(index));
  const std::string& why_not = found.devices[static_cast<size_t>(index)].why_not;
  if (!why_not.empty()) throw Error("cuda_device: " + why_not);
#ifdef CPR_CUDA
  return cuda::make_cuda_device(index);
#else
  return nullptr;  // found.why_not has said so
#endif
}

void define_collection(py::class_<DeviceCollection>& c) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  c.def(py::init(&make_collection), py::arg("tables"), py::arg("features"), py::kw_only(), py::arg("device"),
        py::arg("optimizer"), py::arg("learning_rate"), py::arg("eps") = 1e-8F, py::arg("initial_state") = 0.0F,
        py::arg("beta1") = 0.9, py::arg("beta2") = 0.999, py::arg("weight_decay") = 0.0F, py::arg("seed") = 0);
  def_scalar(c, "learning_rate", &OptimizerSpec::learning_rate);
  def_scalar(c, "eps", &OptimizerSpec::eps);
  def_scalar(c, "beta1", &OptimizerSpec::beta1);
  def_scalar(c, "beta2", &OptimizerSpec::beta2);
  def_scalar(c, "weight_decay", &OptimizerSpec::weight_decay);
  c.def_property_readonly("tables", [](const DeviceCollection& self) {
    std::vector<TableSpec> specs;
    for (int64_t t = 0; t < self.num_tables(); ++t) specs.push_back(self.spec(t));
    return specs;
  });
  c.def_property_readonly("output_dim", [](const DeviceCollection& self) { return self.layout().output_dim; });
  c.def("needs", &needs, py::arg("table"));
  c.def("bind", &bind, py::arg("table"), py::arg("weight"), py::arg("arrays"), py::arg("metadata"), py::arg("slots"),
        py::arg("claims"), py::arg("owner"));
  c.def_property_readonly("record_bytes", &DeviceCollection::record_bytes);
  c.def(
      "bind_records",
      [](DeviceCollection& self, const TensorRef& memory, const py::object& owner, Stream stream) {
        self.bind_records(checked_memory(memory, "memory", self.record_bytes()), owner_of(owner), stream);
      },
      py::arg("memory"), py::arg("owner"), py::arg("stream") = 0);
  c.def(
      "initialise", [](DeviceCollection& self, Stream stream, bool weights) { self.initialise(weights, stream); },
      py::arg("stream") = 0, py::kw_only(), py::arg("weights") = true, without_gil);
  c.def("bind_weight", &bind_weight, py::arg("table"), py::arg("weight"), py::arg("owner"), py::arg("stream") = 0);
  c.def("set_optimizer", &set_optimizer, py::kw_only(), py::arg("stream") = 0, py::arg("learning_rate") = py::none(),
        py::arg("eps") = py::none(), py::arg("beta1") = py::none(), py::arg("beta2") = py::none(),
        py::arg("weight_decay") = py::none());
  c.def("step", &DeviceCollection::step, py::arg("stream") = 0, without_gil);
  c.def(
      "set_step",
      [](DeviceCollection& self, int64_t step, Stream stream) {
        require(step >= 0, "step: expected at least 0, got " + std::to_string(step));
        py::gil_scoped_release release;
        self.set_step(step, stream);
      },
      py::arg("step"), py::arg("stream") = 0);
  c.def("skipped_steps", &DeviceCollection::skipped_steps, py::arg("stream") = 0, without_gil);
  c.def("batch_bytes", &DeviceCollection::batch_bytes, py::arg("num_ids"), py::arg("batch_size"), py::kw_only(),
        py::arg("weighted"));
  c.def("lookup", &lookup, py::arg("ids"), py::arg("offsets"), py::arg("per_sample_weights"), py::arg("out"),
        py::arg("memory"), py::arg("owner"), py::kw_only(), py::arg("stream") = 0, py::arg("ids_per_bag") = 0);
  c.def("per_sample_weight_grad", &weight_grad, py::arg("batch"), py::arg("grad"), py::arg("out"), py::kw_only(),
        py::arg("stream") = 0);
  c.def("update_bytes", &DeviceCollection::update_bytes, py::arg("num_ids"));
  c.def("update", &update, py::arg("batch"), py::arg("grad"), py::arg("memory"), py::kw_only(),
        py::arg("grad_scale") = 1.0F, py::arg("frozen") = std::vector<int64_t>(), py::arg("stream") = 0);
  c.def("synchronize", &DeviceCollection::synchronize, py::arg("stream") = 0, without_gil);
}

}  // namespace

void register_device(py::module_& m) {
  py::class_<cuda::Device, std::shared_ptr<cuda::Device>>(m, "Device")
      .def_property_readonly("name", &cuda::Device::name)
      .def("synchronize", &cuda::Device::synchronize, py::arg("stream") = 0, py::call_guard<py::gil_scoped_release>());
  m.def("cuda_device", &cuda_device, py::arg("index"));
#ifdef CPR_HOST_DEVICE
  m.def("host_device", &cuda::make_host_device, py::arg("lanes"), py::arg("seed"), py::kw_only(),
        py::arg("deferred") = true);
#endif
  py::class_<DeviceBatch, std::shared_ptr<DeviceBatch>>(m, "DeviceBatch")
      .def_readonly("num_ids", &DeviceBatch::num_ids)
      .def_readonly("batch_size", &DeviceBatch::batch_size);
  py::class_<DeviceCollection> c(m, "DeviceCollection");
  define_collection(c);
  register_device_rows(c);
  register_device_saved(c);
  register_device_unique(c);
}

}  // namespace cpr
