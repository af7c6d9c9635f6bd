#pragma once

#include <cstdint>

#include "core/hash.hpp"
#include "core/macros.hpp"
#include "core/types.hpp"

// float16 and bfloat16 as bit patterns, to and from float32, without the instructions that only some machines have.
// Loops over rows become vectors on every level.
namespace cpr {

CPR_INLINE float float_from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

CPR_INLINE uint32_t bits_of_float(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

CPR_INLINE float float_from_bfloat16(uint16_t half) { return float_from_bits(uint32_t{half} << 16); }

// Exact: exponents are moved by a multiplication, which makes denormal halves normal floats.
CPR_INLINE float float_from_float16(uint16_t half) {
  const uint32_t magnitude = uint32_t{half & 0x7fffU} << 13;
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t special = magnitude >= (0x7c00U << 13) ? 0x7f800000U : 0;
  return float_from_bits(bits_of_float(float_from_bits(magnitude) * 0x1p112F) | special | sign);
}

// Rounds away the low 16 bits after adding `noise` < 2^16 to them: 16 random bits round stochastically. Infinity stays,
// NaN stays NaN.
CPR_INLINE uint16_t bfloat16_from_float(float x, uint32_t noise) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t rounded = (bits + noise) >> 16;
  const uint32_t kept = magnitude > 0x7f800000U ? (bits >> 16) | 0x40U : bits >> 16;
  return static_cast<uint16_t>(magnitude >= 0x7f800000U ? kept : rounded);
}

// The same with the low 13 bits and `noise` < 2^13. What is above the largest half becomes infinity, as in torch.
CPR_INLINE uint16_t float16_from_float(float x, uint32_t noise) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t moved = bits_of_float(float_from_bits(magnitude) * 0x1p-112F);
  const uint32_t rounded = (moved + noise) >> 13;
  const uint32_t finite = rounded < 0x7c00U ? rounded : 0x7c00U;
  const uint32_t half = magnitude > 0x7f800000U ? 0x7e00U : finite;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000U));
}

// To nearest, ties to even.
CPR_INLINE uint16_t nearest_bfloat16(float x) {
  return bfloat16_from_float(x, 0x7fffU + ((bits_of_float(x) >> 16) & 1U));
}

// Denormal results are rounded once, by a sum whose last place is theirs.
CPR_INLINE uint16_t nearest_float16(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t denormal = bits_of_float(float_from_bits(magnitude) + 0.5F) - bits_of_float(0.5F);
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const uint32_t rounded = magnitude < (113U << 23) ? denormal : normal;
  const uint32_t finite = rounded < 0x7c00U ? rounded : 0x7c00U;
  const uint32_t half = magnitude > 0x7f800000U ? 0x7e00U : finite;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000U));
}

// A row of `dtype`, not float64, as floats.
CPR_INLINE void load_floats(const void* row, DType dtype, int64_t dim, float* out) {
  const uint16_t* halves = static_cast<const uint16_t*>(row);
  if (dtype == DType::kFloat32) {
    __builtin_memcpy(out, row, static_cast<size_t>(dim) * sizeof(float));
  } else if (dtype == DType::kBFloat16) {
    for (int64_t d = 0; d < dim; ++d) out[d] = float_from_bfloat16(halves[d]);
  } else {
    for (int64_t d = 0; d < dim; ++d) out[d] = float_from_float16(halves[d]);
  }
}

// Rounded to nearest.
CPR_INLINE void store_nearest(const float* x, DType dtype, int64_t dim, void* row) {
  uint16_t* halves = static_cast<uint16_t*>(row);
  if (dtype == DType::kFloat32) {
    __builtin_memcpy(row, x, static_cast<size_t>(dim) * sizeof(float));
  } else if (dtype == DType::kBFloat16) {
    for (int64_t d = 0; d < dim; ++d) halves[d] = nearest_bfloat16(x[d]);
  } else {
    for (int64_t d = 0; d < dim; ++d) halves[d] = nearest_float16(x[d]);
  }
}

// Rounded stochastically: up with the probability that keeps the expected value, by the hash of row_key and column.
CPR_INLINE void store_stochastic(const float* x, DType dtype, int64_t dim, uint64_t row_key, void* row) {
  uint16_t* halves = static_cast<uint16_t*>(row);
  if (dtype == DType::kBFloat16) {
    for (int64_t d = 0; d < dim; ++d) {
      halves[d] = bfloat16_from_float(x[d], element_bits(row_key, static_cast<uint32_t>(d)) >> 16);
    }
  } else {
    for (int64_t d = 0; d < dim; ++d) {
      halves[d] = float16_from_float(x[d], element_bits(row_key, static_cast<uint32_t>(d)) >> 19);
    }
  }
}

}  // namespace cpr
