#pragma once

#include <cstdint>

namespace cpr {

// Whether none of the `n` numbers is infinite or NaN; read by up to `threads` threads.
bool all_finite(const float* x, int64_t n, int threads);

}  // namespace cpr
