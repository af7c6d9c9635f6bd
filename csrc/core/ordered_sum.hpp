#pragma once

#include <cstdint>

#include "core/macros.hpp"
#include "core/types.hpp"

// The one order in which vectors are summed, for pooling and for gradients of equal rows: input order in a 32-ary tree.
// Chunks of 32 are summed sequentially, then chunks of 32 partial sums, and so on; up to 32 it is the plain order.
// D is the length known at compile time, or 0 for `dim`.
namespace cpr {

inline constexpr int kSumLevels = 8;  // 32^7 > 2^32 items

template <int D>
CPR_INLINE int64_t fixed_dim(int64_t dim) {
  return D > 0 ? D : dim;
}

// kWidth floats at any address, which the compiler maps to whatever registers the instruction set has. Loops over rows
// are written with them because the compiler can't know that table, gradient and sums don't overlap.
template <int kWidth>
struct Lanes {
  typedef float Floats __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
};

template <int D>
inline constexpr int kRowWidth = D == 0 || D % 16 == 0 ? 16
                                 : D % 8 == 0          ? 8
                                                       : 4;

template <int D>
using RowFloats = typename Lanes<kRowWidth<D>>::Floats;

template <int D>
CPR_INLINE RowFloats<D>& lanes(float* x) {
  return *reinterpret_cast<RowFloats<D>*>(x);
}

template <int D>
CPR_INLINE const RowFloats<D>& lanes(const float* x) {
  return *reinterpret_cast<const RowFloats<D>*>(x);
}

template <int D>
CPR_INLINE void copy_row(float* out, const float* x, int64_t dim) {
  int64_t d = 0;
  for (; d + kRowWidth<D> <= fixed_dim<D>(dim); d += kRowWidth<D>) lanes<D>(out + d) = lanes<D>(x + d);
  for (; d < fixed_dim<D>(dim); ++d) out[d] = x[d];
}

template <int D>
CPR_INLINE void add_row(float* out, const float* x, int64_t dim) {
  int64_t d = 0;
  for (; d + kRowWidth<D> <= fixed_dim<D>(dim); d += kRowWidth<D>) lanes<D>(out + d) += lanes<D>(x + d);
  for (; d < fixed_dim<D>(dim); ++d) out[d] += x[d];
}

template <int D>
CPR_INLINE void copy_scaled(float* out, const float* x, float scale, int64_t dim) {
  int64_t d = 0;
  for (; d + kRowWidth<D> <= fixed_dim<D>(dim); d += kRowWidth<D>) lanes<D>(out + d) = lanes<D>(x + d) * scale;
  for (; d < fixed_dim<D>(dim); ++d) out[d] = x[d] * scale;
}

template <int D>
CPR_INLINE void add_scaled(float* out, const float* x, float scale, int64_t dim) {
  int64_t d = 0;
  for (; d + kRowWidth<D> <= fixed_dim<D>(dim); d += kRowWidth<D>) lanes<D>(out + d) += lanes<D>(x + d) * scale;
  for (; d < fixed_dim<D>(dim); ++d) out[d] += x[d] * scale;
}

template <int D>
CPR_INLINE void subtract_scaled(float* out, const float* x, float scale, int64_t dim) {
  int64_t d = 0;
  for (; d + kRowWidth<D> <= fixed_dim<D>(dim); d += kRowWidth<D>) lanes<D>(out + d) -= lanes<D>(x + d) * scale;
  for (; d < fixed_dim<D>(dim); ++d) out[d] -= x[d] * scale;
}

// float64 tables: the same loops, left to the compiler.
template <int D>
CPR_INLINE void copy_row(double* out, const double* x, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) out[d] = x[d];
}

template <int D>
CPR_INLINE void add_row(double* out, const double* x, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) out[d] += x[d];
}

template <int D>
CPR_INLINE void copy_scaled(double* out, const double* x, double scale, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) out[d] = x[d] * scale;
}

template <int D>
CPR_INLINE void add_scaled(double* out, const double* x, double scale, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) out[d] += x[d] * scale;
}

// Number `count` has just been written to level 0 of `acc` [kSumLevels][dim]; completed chunks move up.
template <int D, typename T>
CPR_INLINE void carry_sums(T* acc, uint64_t count, int64_t dim_) {
  const int64_t dim = fixed_dim<D>(dim_);
  T* level = acc;
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
template <int D, typename T>
CPR_INLINE const T* finish_sums(T* acc, uint64_t count, int64_t dim_) {
  const int64_t dim = fixed_dim<D>(dim_);
  T* level = acc;
  bool partial = false;  // the level's last chunk has been completed just now, by the partial chunk below it
  while (count > 1) {
    if (partial || count % kSumFanout != 0) {
      if (((count - 1) / kSumFanout) % kSumFanout == 0) {
        copy_row<D>(level + dim, level, dim);
      } else {
        add_row<D>(level + dim, level, dim);
      }
      partial = true;
    }
    count = (count + kSumFanout - 1) / kSumFanout;
    level += dim;
  }
  return level;
}

using Floats16 = Lanes<16>::Floats;

CPR_INLINE Floats16 squares_of(const float* x, int64_t n) {
  Floats16 v = {};
  if (n >= 16) {
    v = *reinterpret_cast<const Floats16*>(x);
  } else {
    for (int64_t j = 0; j < n; ++j) v[j] = x[j];
  }
  return v * v;
}

// Sum of squares: lane = element mod 32, each lane in order, then neighbouring lanes pairwise.
template <int D>
CPR_INLINE float sum_of_squares(const float* x, int64_t dim_) {
  const int64_t dim = fixed_dim<D>(dim_);
  Floats16 low = squares_of(x, dim);
  Floats16 high = {};
  if (dim > 16) high = squares_of(x + 16, dim - 16);
  for (int64_t d = 32; d < dim; d += 32) {
    low += squares_of(x + d, dim - d);
    if (d + 16 < dim) high += squares_of(x + d + 16, dim - d - 16);
  }
  Floats16 v = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
               __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  v += __builtin_shufflevector(v, v, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  v += __builtin_shufflevector(v, v, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14);
  v += __builtin_shufflevector(v, v, 4, 4, 4, 4, 4, 4, 4, 4, 12, 12, 12, 12, 12, 12, 12, 12);
  return v[0] + v[8];
}

}  // namespace cpr
