#pragma once

// Functions that the kernels share are internal and always inlined: an out-of-line copy compiled for AVX-512 could
// otherwise be the one that the linker keeps for every instruction set. nvcc compiles them for host and device.
#if defined(__CUDACC__)
#define CPR_INLINE static __forceinline__ __host__ __device__
#else
#define CPR_INLINE static inline __attribute__((always_inline))
#endif
