#pragma once

#include <cstdint>
#include <vector>

#include "cuda/args.hpp"
#include "cuda/row_args.hpp"
#include "cuda/snapshot_args.hpp"
#include "cuda/unique_args.hpp"

// The kernels' bodies compiled for the host, one group after the other.
namespace cpr::cuda {

struct HostKernels {
  using Order = std::vector<int64_t>;  // in which the groups of a launch run: a permutation of their numbers
  void (*initialise)(const InitialiseArgs& args, const Order& order);
  void (*lookup)(const LookupArgs& args, const Order& order);
  void (*weight_grad)(const WeightGradArgs& args, const Order& order);
  void (*partial_sums)(const UpdateArgs& args, const Order& order);
  void (*update)(const UpdateArgs& args, const Order& order);
  void (*enter_sampled)(const UpdateArgs& args, const Order& order);
  void (*read_keys)(const IdArgs& args, const Order& order);
  void (*unique_rows)(const UniqueArgs& args, const Order& order);
  void (*rows)(const RowArgs& args, const Order& order);
  void (*snapshot)(const SnapshotArgs& args, const Order& order);
};

// For groups of kLanes lanes: 1, 8 or 32.
template <int kLanes>
const HostKernels& host_kernels();

extern template const HostKernels& host_kernels<1>();
extern template const HostKernels& host_kernels<8>();
extern template const HostKernels& host_kernels<32>();

}  // namespace cpr::cuda
