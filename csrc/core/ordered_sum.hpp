#pragma once

#include <cstdint>

#include "core/macros.hpp"

// The one order in which vectors are summed, for pooling and for gradients of equal rows: input order in a 32-ary tree.
// Chunks of 32 are summed sequentially, then chunks of 32 partial sums, and so on; up to 32 it is the plain order.
// D is the length known at compile time, or 0 for `dim`.
namespace cpr {

inline constexpr int64_t kSumFanout = 32;
inline constexpr int kSumLevels = 8;  // 32^7 > 2^32 items

template <int D>
CPR_INLINE int64_t fixed_dim(int64_t dim) {
  return D > 0 ? D : dim;
}

template <int D>
CPR_INLINE void copy_row(float* out, const float* x, int64_t dim) {
  for (int64_t d = 0; d < fixed_dim<D>(dim); ++d) out[d] = x[d];
}

template <int D>
CPR_INLINE void add_row(float* out, const float* x, int64_t dim) {
  for (int64_t d = 0; d < fixed_dim<D>(dim); ++d) out[d] += x[d];
}

template <int D>
CPR_INLINE void copy_scaled(float* out, const float* x, float scale, int64_t dim) {
  for (int64_t d = 0; d < fixed_dim<D>(dim); ++d) out[d] = x[d] * scale;
}

template <int D>
CPR_INLINE void add_scaled(float* out, const float* x, float scale, int64_t dim) {
  for (int64_t d = 0; d < fixed_dim<D>(dim); ++d) out[d] += x[d] * scale;
}

// Number `count` has just been written to level 0 of `acc` [kSumLevels][dim]; completed chunks move up.
template <int D>
CPR_INLINE void carry_sums(float* acc, uint64_t count, int64_t dim_) {
  const int64_t dim = fixed_dim<D>(dim_);
  float* level = acc;
  while (count % kSumFanout == 0) {
    count /= kSumFanout;
    if ((count - 1) % kSumFanout == 0) {
      copy_row<D>(level + dim, level, dim);
    } else {
      add_row<D>(level + dim, level, dim);
    }
    level += dim;
  }
}

// The sum of `count` >= 1 items that went through carry_sums; points into acc.
template <int D>
CPR_INLINE const float* finish_sums(float* acc, uint64_t count, int64_t dim_) {
  const int64_t dim = fixed_dim<D>(dim_);
  float* level = acc;
  while (count > 1) {
    if (count % kSumFanout != 0) {
      if ((count / kSumFanout) % kSumFanout == 0) {
        copy_row<D>(level + dim, level, dim);
      } else {
        add_row<D>(level + dim, level, dim);
      }
    }
    count = (count + kSumFanout - 1) / kSumFanout;
    level += dim;
  }
  return level;
}

// Sum of squares: lane = element mod 32, each lane in order, then neighbouring lanes pairwise.
template <int D>
CPR_INLINE float sum_of_squares(const float* x, int64_t dim_) {
  const int64_t dim = fixed_dim<D>(dim_);
  constexpr int kLanes = (D > 0 && D <= 4) ? 4 : (D > 0 && D <= 8) ? 8 : (D > 0 && D <= 16) ? 16 : 32;
  float lane[kLanes] = {};
  if constexpr (D > 0) {
    for (int d = 0; d < D; d += kLanes) {
      for (int j = 0; j < kLanes && d + j < D; ++j) lane[j] += x[d + j] * x[d + j];
    }
  } else {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      for (int j = 0; j < kLanes; ++j) lane[j] += x[d + j] * x[d + j];
    }
    for (int j = 0; d + j < dim; ++j) lane[j] += x[d + j] * x[d + j];
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] = lane[2 * j] + lane[2 * j + 1];
  }
  return lane[0];
}

}  // namespace cpr
