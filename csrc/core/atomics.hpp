#pragma once

#include <cstdint>

#include "core/macros.hpp"

// The atomic operations of code that host and device share, each with its order in its name. Their scope on the device
// is the device, for store_for_host the whole system.
namespace cpr {

#if defined(__CUDA_ARCH__)

CPR_INLINE uint32_t load_acquire(const uint32_t* at) {
  return __nv_atomic_load_n(const_cast<uint32_t*>(at), __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE void store_relaxed(uint32_t* at, uint32_t value) {
  __nv_atomic_store_n(at, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE void store_for_host(uint32_t* at, uint32_t value) {
  __nv_atomic_store_n(at, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
}
CPR_INLINE uint32_t add_acq_rel(uint32_t* at, uint32_t value) {
  return __nv_atomic_fetch_add(at, value, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE uint32_t add_relaxed(uint32_t* at, uint32_t value) {
  return __nv_atomic_fetch_add(at, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE uint64_t add_relaxed(uint64_t* at, uint64_t value) {
  return __nv_atomic_fetch_add(at, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE void min_relaxed(uint32_t* at, uint32_t value) {
  __nv_atomic_fetch_min(at, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE void max_relaxed(uint32_t* at, uint32_t value) {
  __nv_atomic_fetch_max(at, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
CPR_INLINE void min_relaxed(uint64_t* at, uint64_t value) {
  __nv_atomic_fetch_min(at, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

#else

CPR_INLINE uint32_t load_acquire(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
CPR_INLINE void store_relaxed(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
CPR_INLINE void store_for_host(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
CPR_INLINE uint32_t add_acq_rel(uint32_t* at, uint32_t value) {
  return __atomic_fetch_add(at, value, __ATOMIC_ACQ_REL);
}
CPR_INLINE uint32_t add_relaxed(uint32_t* at, uint32_t value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
CPR_INLINE uint64_t add_relaxed(uint64_t* at, uint64_t value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
CPR_INLINE void min_relaxed(uint32_t* at, uint32_t value) {
  uint32_t held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (held > value && !__atomic_compare_exchange_n(at, &held, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
CPR_INLINE void max_relaxed(uint32_t* at, uint32_t value) {
  uint32_t held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (held < value && !__atomic_compare_exchange_n(at, &held, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
CPR_INLINE void min_relaxed(uint64_t* at, uint64_t value) {
  uint64_t held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (held > value && !__atomic_compare_exchange_n(at, &held, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

#endif

}  // namespace cpr
