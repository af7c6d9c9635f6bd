#pragma once

#include <cstdint>

#include "core/macros.hpp"

// What kernel bodies are written in: groups of lanes that work on one row. A group has kLanes lanes, each with kWidth
// neighbouring columns of every block of 32. Values of a lane lie in PerLane<T>; `each` runs a statement for every
// lane; the other members are the only communication. Control flow between calls is the same for all lanes of a group.
// LaneStore holds values of the lane that runs, as many as would take too many registers. On the device a lane is a
// thread; on the host it is an element of an array. Sums go by a butterfly, so every lane gets the same bits:
// neighbours first, as sum_of_squares in core/ordered_sum.hpp.
#if defined(__CUDACC__)
#define CPR_BODY static __forceinline__ __device__
#define CPR_MEMBER __forceinline__ __device__
#define CPR_UNROLL _Pragma("unroll")
#define CPR_ROLLED _Pragma("unroll 1")
#else
#define CPR_BODY static inline
#define CPR_MEMBER inline
#define CPR_UNROLL
#define CPR_ROLLED
#endif

namespace cpr::cuda {

inline constexpr int kBlockColumns = 32;

#if defined(__CUDACC__)

template <int kLanes_>
class DeviceGroup {
 public:
  static constexpr int kLanes = kLanes_;
  static constexpr int kWidth = kBlockColumns / kLanes;

  template <typename T>
  struct PerLane {
    T value{};
    __device__ T& operator[](int) { return value; }
    __device__ const T& operator[](int) const { return value; }
  };

  // In shared memory; one of its kind in a kernel, of blocks of at most 256 threads.
  template <typename T, int kCount>
  class LaneStore {
   public:
    __device__ T& operator[](int i) const {
      __shared__ T slots[kCount][256];
      return slots[i][threadIdx.x];
    }
  };

  __device__ DeviceGroup()
      : index_((int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kLanes),
        count_(int64_t{gridDim.x} * blockDim.x / kLanes),
        lane_(static_cast<int>(threadIdx.x % kLanes)),
        mask_(kLanes == 32 ? ~0U : ((1U << kLanes) - 1U) << (threadIdx.x % 32 / kLanes * kLanes)) {}

  // Of this group, and of all groups of the launch.
  __device__ int64_t index() const { return index_; }
  __device__ int64_t count() const { return count_; }

  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
    body(lane_);
  }
  template <typename T>
  __device__ __forceinline__ T sum(const PerLane<T>& x) const {
    T total = x.value;
    CPR_UNROLL
    for (int step = 1; step < kLanes; step *= 2) total = total + __shfl_xor_sync(mask_, total, step, kLanes);
    return total;
  }
  __device__ __forceinline__ bool any(const PerLane<bool>& x) const { return __any_sync(mask_, x.value) != 0; }
  template <typename T>
  __device__ __forceinline__ T from_first(const PerLane<T>& x) const {
    return __shfl_sync(mask_, x.value, 0, kLanes);
  }
  // The sum over the lanes before.
  template <typename T>
  __device__ __forceinline__ PerLane<T> sum_before(const PerLane<T>& x) const {
    T total = x.value;
    CPR_UNROLL
    for (int step = 1; step < kLanes; step *= 2) {
      const T lower = __shfl_up_sync(mask_, total, step, kLanes);
      if (lane_ >= step) total = total + lower;
    }
    return {total - x.value};
  }
  // What lanes wrote before is seen by the group's lanes after.
  __device__ __forceinline__ void sync() const { __syncwarp(mask_); }

 private:
  int64_t index_;
  int64_t count_;
  int lane_;
  unsigned mask_;
};

#endif

template <int kLanes_>
class HostGroup {
 public:
  static constexpr int kLanes = kLanes_;
  static constexpr int kWidth = kBlockColumns / kLanes;

  template <typename T>
  struct PerLane {
    T values[kLanes] = {};
    T& operator[](int lane) { return values[lane]; }
    const T& operator[](int lane) const { return values[lane]; }
  };

  template <typename T, int kCount>
  class LaneStore {
   public:
    T& operator[](int i) { return values_[i]; }

   private:
    T values_[kCount];
  };

  HostGroup(int64_t index, int64_t count) : index_(index), count_(count) {}

  int64_t index() const { return index_; }
  int64_t count() const { return count_; }

  template <typename Body>
  void each(const Body& body) const {
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  }
  template <typename T>
  T sum(PerLane<T> x) const {
    for (int step = 1; step < kLanes; step *= 2) {
      PerLane<T> next;
      for (int lane = 0; lane < kLanes; ++lane) next[lane] = x[lane] + x[lane ^ step];
      x = next;
    }
    return x[0];
  }
  bool any(const PerLane<bool>& x) const {
    bool found = false;
    for (int lane = 0; lane < kLanes; ++lane) found |= x[lane];
    return found;
  }
  template <typename T>
  T from_first(const PerLane<T>& x) const {
    return x[0];
  }
  template <typename T>
  PerLane<T> sum_before(const PerLane<T>& x) const {
    PerLane<T> sums;
    for (int lane = 1; lane < kLanes; ++lane) sums[lane] = sums[lane - 1] + x[lane - 1];
    return sums;
  }
  void sync() const {}

 private:
  int64_t index_;
  int64_t count_;
};

}  // namespace cpr::cuda
