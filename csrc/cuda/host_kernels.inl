// Included by one source for each number of lanes, so that they compile beside each other.
#include "core/half.hpp"
#include "core/hash.hpp"
#include "core/steps.hpp"
#include "cuda/group.hpp"
#include "cuda/host_kernels.hpp"

namespace cpr::cuda {
namespace {

#include "cuda/kernels.inl"

template <int kLanes, typename Args, typename Body>
void run(const Args& args, const HostKernels::Order& order, const Body& body) {
  const int64_t groups = static_cast<int64_t>(order.size());
  for (const int64_t index : order) body(HostGroup<kLanes>(index, groups), args);
}

template <int kLanes>
void run_initialise(const InitialiseArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { initialise_body(g, a); });
}

template <int kLanes>
void run_lookup(const LookupArgs& args, const HostKernels::Order& order) {
  if (args.wide) {
    run<kLanes>(args, order, [](const auto& g, const auto& a) { lookup_body<double>(g, a); });
  } else {
    run<kLanes>(args, order, [](const auto& g, const auto& a) { lookup_body<float>(g, a); });
  }
}

template <int kLanes>
void run_weight_grad(const WeightGradArgs& args, const HostKernels::Order& order) {
  if (args.wide) {
    run<kLanes>(args, order, [](const auto& g, const auto& a) { weight_grad_body<double>(g, a); });
  } else {
    run<kLanes>(args, order, [](const auto& g, const auto& a) { weight_grad_body<float>(g, a); });
  }
}

template <int kLanes>
void run_partial_sums(const UpdateArgs& args, const HostKernels::Order& order) {
  if (args.wide) {
    run<kLanes>(args, order, [](const auto& g, const auto& a) { partial_body<double>(g, a); });
  } else {
    run<kLanes>(args, order, [](const auto& g, const auto& a) { partial_body<float>(g, a); });
  }
}

template <int kLanes, Optimizer kOptimizer>
void run_update_as(const UpdateArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { update_body<kOptimizer>(g, a); });
}

template <int kLanes>
void run_update(const UpdateArgs& args, const HostKernels::Order& order) {
  switch (args.optimizer) {
    case Optimizer::kSgd:
      return run_update_as<kLanes, Optimizer::kSgd>(args, order);
    case Optimizer::kRowWiseAdagrad:
      return run_update_as<kLanes, Optimizer::kRowWiseAdagrad>(args, order);
    case Optimizer::kAdagrad:
      return run_update_as<kLanes, Optimizer::kAdagrad>(args, order);
    case Optimizer::kAdam:
      return run_update_as<kLanes, Optimizer::kAdam>(args, order);
    case Optimizer::kPartialRowWiseAdam:
      return run_update_as<kLanes, Optimizer::kPartialRowWiseAdam>(args, order);
    case Optimizer::kNone:
      break;
  }
}

template <int kLanes>
void run_enter_sampled(const UpdateArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { enter_body(g, a); });
}

template <int kLanes>
void run_read_keys(const IdArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { read_keys_body(g, a); });
}

template <int kLanes, UniqueStep kStep, typename T = float>
void run_unique_as(const UniqueArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { unique_body<kStep, T>(g, a); });
}

template <int kLanes>
void run_unique_rows(const UniqueArgs& args, const HostKernels::Order& order) {
  switch (args.step) {
    case UniqueStep::kGradient:
      return args.update.wide ? run_unique_as<kLanes, UniqueStep::kGradient, double>(args, order)
                              : run_unique_as<kLanes, UniqueStep::kGradient>(args, order);
    case UniqueStep::kTrack:
      return run_unique_as<kLanes, UniqueStep::kTrack>(args, order);
    case UniqueStep::kRenormalise:
      return run_unique_as<kLanes, UniqueStep::kRenormalise>(args, order);
    case UniqueStep::kEnterSampled:
      return run_unique_as<kLanes, UniqueStep::kEnterSampled>(args, order);
  }
}

template <int kLanes>
void run_rows(const RowArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { row_step_body(g, a); });
}

template <int kLanes>
void run_snapshot(const SnapshotArgs& args, const HostKernels::Order& order) {
  run<kLanes>(args, order, [](const auto& g, const auto& a) { snapshot_body(g, a); });
}

}  // namespace

template <int kLanes>
const HostKernels& host_kernels() {
  static const HostKernels kernels = {run_initialise<kLanes>,   run_lookup<kLanes>,      run_weight_grad<kLanes>,
                                      run_partial_sums<kLanes>, run_update<kLanes>,      run_enter_sampled<kLanes>,
                                      run_read_keys<kLanes>,    run_unique_rows<kLanes>, run_rows<kLanes>,
                                      run_snapshot<kLanes>};
  return kernels;
}

}  // namespace cpr::cuda
