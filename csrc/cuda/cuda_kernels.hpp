#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/args.hpp"
#include "cuda/row_args.hpp"
#include "cuda/snapshot_args.hpp"
#include "cuda/unique_args.hpp"

// The launches of the kernels on a GPU; each returns what CUDA says.
namespace cpr::cuda {

struct Launch {
  cudaStream_t stream = nullptr;
  int64_t max_blocks = 1;
};

// At most kLaunchBytes, read before it returns.
inline constexpr size_t kLaunchBytes = 1024;
cudaError_t launch_write_bytes(void* to, const void* from, size_t n, cudaStream_t stream);

cudaError_t launch_initialise(const InitialiseArgs& args, const Launch& launch);
cudaError_t launch_lookup(const LookupArgs& args, const Launch& launch);
cudaError_t launch_weight_grad(const WeightGradArgs& args, const Launch& launch);
cudaError_t launch_partial_sums(const UpdateArgs& args, const Launch& launch);
cudaError_t launch_update(const UpdateArgs& args, const Launch& launch);
cudaError_t launch_enter_sampled(const UpdateArgs& args, const Launch& launch);
cudaError_t launch_read_keys(const IdArgs& args, const Launch& launch);
cudaError_t launch_unique_rows(const UniqueArgs& args, const Launch& launch);
// `items`: groups that there is work for.
cudaError_t launch_rows(const RowArgs& args, int64_t items, const Launch& launch);
cudaError_t launch_snapshot(const SnapshotArgs& args, int64_t items, const Launch& launch);

}  // namespace cpr::cuda
