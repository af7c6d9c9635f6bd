#pragma once

// Functions that the kernels share are internal and always inlined: an out-of-line copy compiled for AVX-512 could
// otherwise be the one that the linker keeps for every instruction set.
#define CPR_INLINE static inline __attribute__((always_inline))
