// The kernels' bodies compiled for the device: groups of 8 lanes, each lane 16 bytes of a row at a time.
#include "core/half.hpp"
#include "core/hash.hpp"
#include "core/steps.hpp"
#include "cuda/cuda_kernels.hpp"
#include "cuda/group.hpp"

namespace cpr::cuda {
namespace {

#include "cuda/kernels.inl"

constexpr int kLanes = 8;
constexpr int kThreads = 256;
constexpr int kUpdateThreads =
    128;  // whose groups take many registers: two blocks at least, or the compiler spills some
using Group = DeviceGroup<kLanes>;

__global__ void __launch_bounds__(kThreads) initialise_rows(InitialiseArgs args) { initialise_body(Group(), args); }

__global__ void __launch_bounds__(kThreads) lookup_float(LookupArgs args) { lookup_body<float>(Group(), args); }

__global__ void __launch_bounds__(kThreads) lookup_double(LookupArgs args) { lookup_body<double>(Group(), args); }

__global__ void __launch_bounds__(kThreads) weight_grad_float(WeightGradArgs args) {
  weight_grad_body<float>(Group(), args);
}

__global__ void __launch_bounds__(kThreads) weight_grad_double(WeightGradArgs args) {
  weight_grad_body<double>(Group(), args);
}

__global__ void __launch_bounds__(kThreads) update_partial_sums(UpdateArgs args) { partial_body<float>(Group(), args); }

__global__ void __launch_bounds__(kThreads) partial_sums_double(UpdateArgs args) {
  partial_body<double>(Group(), args);
}

template <Optimizer kOptimizer>
__global__ void __launch_bounds__(kUpdateThreads, 2) update_rows(UpdateArgs args) {
  update_body<kOptimizer>(Group(), args);
}

__global__ void __launch_bounds__(kThreads, 2) enter_rows(UpdateArgs args) { enter_body(Group(), args); }

__global__ void __launch_bounds__(kThreads) read_keys(IdArgs args) { read_keys_body(Group(), args); }

template <UniqueStep kStep, typename T = float>
__global__ void __launch_bounds__(kThreads) unique_rows(UniqueArgs args) {
  unique_body<kStep, T>(Group(), args);
}

__global__ void __launch_bounds__(kThreads) row_steps(RowArgs args) { row_step_body(Group(), args); }

template <SnapshotStep kStep>
__global__ void __launch_bounds__(kThreads) snapshot_step(SnapshotArgs args) {
  args.step = kStep;
  snapshot_body(Group(), args);
}

// A few bytes from the arguments of a launch: a copy from pageable memory would wait for the stream.
struct Bytes {
  char at[kLaunchBytes];
};

__global__ void __launch_bounds__(kThreads) write_bytes(char* to, Bytes bytes, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) to[i] = bytes.at[i];
}

// As many blocks as `items` groups need, at most what keeps the device busy; groups take the rest in turns.
template <int kBlockThreads = kThreads, typename Args>
cudaError_t run(void (*kernel)(Args), const Args& args, int64_t items, const Launch& launch) {
  constexpr int64_t kGroups = kBlockThreads / kLanes;
  const int64_t wanted = (items + kGroups - 1) / kGroups;
  const int64_t most = launch.max_blocks * (kThreads / kBlockThreads);
  const int64_t blocks = wanted < 1 ? 1 : wanted > most ? most : wanted;
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, 0, launch.stream>>>(args);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t launch_write_bytes(void* to, const void* from, size_t n, cudaStream_t stream) {
  Bytes bytes;
  __builtin_memcpy(bytes.at, from, n);
  write_bytes<<<1, kThreads, 0, stream>>>(static_cast<char*>(to), bytes, static_cast<int>(n));
  return cudaPeekAtLastError();
}

cudaError_t launch_initialise(const InitialiseArgs& args, const Launch& launch) {
  return run(initialise_rows, args, args.view.num_rows, launch);
}

cudaError_t launch_lookup(const LookupArgs& args, const Launch& launch) {
  return run(args.wide ? lookup_double : lookup_float, args, args.bags, launch);
}

cudaError_t launch_weight_grad(const WeightGradArgs& args, const Launch& launch) {
  return run(args.wide ? weight_grad_double : weight_grad_float, args, args.num_ids, launch);
}

cudaError_t launch_partial_sums(const UpdateArgs& args, const Launch& launch) {
  return run(args.wide ? partial_sums_double : update_partial_sums, args,
             args.num_ids / kSumFanout + args.grad_size / (kLanes * 16) + 1, launch);
}

cudaError_t launch_update(const UpdateArgs& args, const Launch& launch) {
  const int64_t windows = args.end_window - args.begin_window;
  switch (args.optimizer) {
    case Optimizer::kSgd:
      return run<kUpdateThreads>(update_rows<Optimizer::kSgd>, args, windows, launch);
    case Optimizer::kRowWiseAdagrad:
      return run<kUpdateThreads>(update_rows<Optimizer::kRowWiseAdagrad>, args, windows, launch);
    case Optimizer::kAdagrad:
      return run<kUpdateThreads>(update_rows<Optimizer::kAdagrad>, args, windows, launch);
    case Optimizer::kAdam:
      return run<kUpdateThreads>(update_rows<Optimizer::kAdam>, args, windows, launch);
    case Optimizer::kPartialRowWiseAdam:
      return run<kUpdateThreads>(update_rows<Optimizer::kPartialRowWiseAdam>, args, windows, launch);
    case Optimizer::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_enter_sampled(const UpdateArgs& args, const Launch& launch) {
  return run(enter_rows, args, (args.end_window - args.begin_window) * kWindowKeys / kLanes + 1, launch);
}

cudaError_t launch_read_keys(const IdArgs& args, const Launch& launch) {
  return run(read_keys, args, args.num_ids / kLanes + 1, launch);
}

cudaError_t launch_unique_rows(const UniqueArgs& args, const Launch& launch) {
  const int64_t items = args.update.num_ids;
  switch (args.step) {
    case UniqueStep::kGradient:
      return args.update.wide ? run(unique_rows<UniqueStep::kGradient, double>, args, items, launch)
                              : run(unique_rows<UniqueStep::kGradient>, args, items, launch);
    case UniqueStep::kTrack:
      return run(unique_rows<UniqueStep::kTrack>, args, items, launch);
    case UniqueStep::kRenormalise:
      return run(unique_rows<UniqueStep::kRenormalise>, args, items, launch);
    case UniqueStep::kEnterSampled:
      return run(unique_rows<UniqueStep::kEnterSampled>, args, items, launch);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_rows(const RowArgs& args, int64_t items, const Launch& launch) {
  return run(row_steps, args, items, launch);
}

cudaError_t launch_snapshot(const SnapshotArgs& args, int64_t items, const Launch& launch) {
  switch (args.step) {
    case SnapshotStep::kTally:
      return run(snapshot_step<SnapshotStep::kTally>, args, items, launch);
    case SnapshotStep::kReduce:
      return run(snapshot_step<SnapshotStep::kReduce>, args, items, launch);
    case SnapshotStep::kArm:
      return run(snapshot_step<SnapshotStep::kArm>, args, items, launch);
    case SnapshotStep::kDisarm:
      return run(snapshot_step<SnapshotStep::kDisarm>, args, items, launch);
    case SnapshotStep::kOpen:
      return run(snapshot_step<SnapshotStep::kOpen>, args, items, launch);
    case SnapshotStep::kCount:
      return run(snapshot_step<SnapshotStep::kCount>, args, items, launch);
    case SnapshotStep::kPlace:
      return run(snapshot_step<SnapshotStep::kPlace>, args, items, launch);
    case SnapshotStep::kTake:
      return run(snapshot_step<SnapshotStep::kTake>, args, items, launch);
    case SnapshotStep::kGather:
      return run(snapshot_step<SnapshotStep::kGather>, args, items, launch);
  }
  return cudaErrorInvalidValue;
}

}  // namespace cpr::cuda
