#pragma once

#include <cstdint>

#include "core/macros.hpp"

// The optimizers' formulas, element by element, as every engine computes them (docs/numerics.md has their sources).
namespace cpr {

CPR_INLINE float square_root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// By squaring, so that it is the same number on every machine.
CPR_INLINE double integer_power(double base, uint64_t exponent) {
  double power = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power *= base;
    base *= base;
  }
  return power;
}

// What Adam divides a moment of `beta` by in step t, counted from 1.
CPR_INLINE float adam_correction(double beta, uint64_t t) { return static_cast<float>(1.0 - integer_power(beta, t)); }

// torch.optim.Adagrad: sum += g^2; w -= lr * g / (sqrt(sum) + eps).
CPR_INLINE float adagrad_sum(float sum, float g) { return sum + g * g; }

CPR_INLINE float adagrad_step(float learning_rate, float g, float sum, float eps) {
  return learning_rate * g / (square_root(sum) + eps);
}

// FBGEMM's EXACT_ROWWISE_ADAGRAD: state += mean(g^2); w -= lr / (sqrt(state) + eps) * g.
CPR_INLINE float row_wise_rate(float learning_rate, float state, float eps) {
  return learning_rate / (square_root(state) + eps);
}

// m or v of Adam (Kingma and Ba, 2015): beta * m + (1 - beta) * x.
CPR_INLINE float moved_moment(float beta, float gain, float moment, float x) { return beta * moment + gain * x; }

CPR_INLINE float adam_denominator(float v, float correction, float eps) { return square_root(v / correction) + eps; }

CPR_INLINE float adam_step(float learning_rate, float m, float correction, float denominator) {
  return learning_rate * (m / correction) / denominator;
}

}  // namespace cpr
