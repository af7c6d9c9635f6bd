#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// What a library does on the device (Device::sort_keys, ...): CUB, in one source, because its headers take long.
namespace cpr::cuda {

size_t cub_bytes(int64_t n);
cudaError_t cub_sort_keys(const uint64_t* keys, uint64_t* sorted, int64_t n, int row_bits, void* workspace,
                          cudaStream_t stream);
cudaError_t cub_exclusive_scan(const uint32_t* counts, uint32_t* sums, int64_t n, void* workspace, cudaStream_t stream);
cudaError_t cub_compact_runs(const uint64_t* keys, uint32_t* starts, uint32_t* count, int64_t n, void* workspace,
                             cudaStream_t stream);

}  // namespace cpr::cuda
