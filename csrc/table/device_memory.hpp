#pragma once

#include <cstdint>

#include "core/types.hpp"
#include "cuda/args.hpp"

namespace cpr {

// Lays arrays out one after the other in memory of the caller's, aligned to 16 bytes each; without memory only counts.
class Places {
 public:
  explicit Places(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(int64_t n) {
    char* at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return reinterpret_cast<T*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

// Room for the sums of full chunks among `num_ids` keys of rows of `dim` numbers.
template <typename T>
cuda::PartialSums place_sums(int64_t num_ids, int64_t dim, Places* places) {
  cuda::PartialSums sums;
  sums.stride = (dim + 3) / 4 * 4;
  int64_t total = 0;
  int64_t counters = 0;
  for (int64_t size = kSumFanout; size <= num_ids && sums.levels < cuda::kMaxPartialLevels; size *= kSumFanout) {
    sums.begin[sums.levels] = total;
    total += num_ids / size + 1;
    sums.counters[sums.levels] = counters;
    counters += num_ids / (size * kSumFanout) + 1;
    ++sums.levels;
  }
  sums.sums = places->take<T>(total * sums.stride);
  sums.sampled = places->take<uint32_t>(total);
  return sums;
}

}  // namespace cpr
