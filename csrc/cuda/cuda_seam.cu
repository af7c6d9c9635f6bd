#include <thrust/iterator/counting_iterator.h>
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "cuda/seam.hpp"

namespace cpr::cuda {

namespace {

constexpr size_t kEnough = ~size_t{0};  // the caller's workspace has cub_bytes

// Whether a run begins at place i of sorted keys.
struct BeginsRun {
  const uint64_t* keys;
  __device__ bool operator()(uint32_t i) const { return i == 0 || keys[i] >> 32 != keys[i - 1] >> 32; }
};

cudaError_t sort_keys(void* workspace, size_t* bytes, const uint64_t* keys, uint64_t* sorted, int64_t n, int end_bit,
                      cudaStream_t stream) {
  return cub::DeviceRadixSort::SortKeys(workspace, *bytes, keys, sorted, n, 32, end_bit, stream);
}

cudaError_t scan(void* workspace, size_t* bytes, const uint32_t* counts, uint32_t* sums, int64_t n,
                 cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(workspace, *bytes, counts, sums, n, stream);
}

cudaError_t compact(void* workspace, size_t* bytes, const uint64_t* keys, uint32_t* starts, uint32_t* count, int64_t n,
                    cudaStream_t stream) {
  return cub::DeviceSelect::If(workspace, *bytes, thrust::counting_iterator<uint32_t>(0), starts, count, n,
                               BeginsRun{keys}, stream);
}

}  // namespace

size_t cub_bytes(int64_t n) {
  size_t largest = 0;
  size_t bytes = 0;
  if (sort_keys(nullptr, &bytes, nullptr, nullptr, n, 64, nullptr) == cudaSuccess) largest = std::max(largest, bytes);
  if (scan(nullptr, &bytes, nullptr, nullptr, n, nullptr) == cudaSuccess) largest = std::max(largest, bytes);
  if (compact(nullptr, &bytes, nullptr, nullptr, nullptr, n, nullptr) == cudaSuccess)
    largest = std::max(largest, bytes);
  return largest;
}

cudaError_t cub_sort_keys(const uint64_t* keys, uint64_t* sorted, int64_t n, int row_bits, void* workspace,
                          cudaStream_t stream) {
  size_t bytes = kEnough;
  return sort_keys(workspace, &bytes, keys, sorted, n, 32 + row_bits, stream);
}

cudaError_t cub_exclusive_scan(const uint32_t* counts, uint32_t* sums, int64_t n, void* workspace,
                               cudaStream_t stream) {
  size_t bytes = kEnough;
  return scan(workspace, &bytes, counts, sums, n, stream);
}

cudaError_t cub_compact_runs(const uint64_t* keys, uint32_t* starts, uint32_t* count, int64_t n, void* workspace,
                             cudaStream_t stream) {
  size_t bytes = kEnough;
  return compact(workspace, &bytes, keys, starts, count, n, stream);
}

}  // namespace cpr::cuda
