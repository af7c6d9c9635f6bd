#pragma once

#include <cstdint>

#include "core/atomics.hpp"
#include "core/macros.hpp"

// A row's metadata: optimizer state and counter word in one 8-byte cell, so that tracking touches no cache line that
// the optimizer does not touch anyway.
namespace cpr {

struct alignas(8) RowMeta {
  float state;    // row-wise accumulator; unused by optimizers without one
  uint32_t word;  // parity | dirty | listed | void drift | base parity | count
};
static_assert(sizeof(RowMeta) == 8);

// A row's metadata where the drift is tracked, still within one cache line.
struct alignas(16) DriftMeta {
  RowMeta row;
  float drift;  // sum of the norms of the steps since the row was last saved, unless the word says it is void
  float unused;
};
static_assert(sizeof(DriftMeta) == 16);

// Which snapshot settled the row last, modulo 2: of those that choose rows by their trackers, and of those that take
// all or named ones. A row that no rule of trackers would choose may have any parity of the first kind: the walk passes
// it over. Every other row has the table's.
inline constexpr uint32_t kParityBit = 1U << 31;
inline constexpr uint32_t kBaseParityBit = 1U << 27;
inline constexpr uint32_t kParityBits = kParityBit | kBaseParityBit;
inline constexpr uint32_t kDirtyBit = 1U << 30;   // updated since the last base or delta
inline constexpr uint32_t kListedBit = 1U << 29;  // was sampled: may hold a slot of the sub-sampled used list
// The row was taken by a snapshot since its drift was written: it counts as 0. Part of the word, because the background
// walk takes a row with one compare-exchange and may write nothing else.
inline constexpr uint32_t kVoidDriftBit = 1U << 28;
inline constexpr uint32_t kCountMask = kBaseParityBit - 1;

CPR_INLINE uint32_t add_count(uint32_t word, uint64_t n) {
  const uint64_t sum = (word & kCountMask) + n;
  const uint32_t count = sum > kCountMask ? kCountMask : static_cast<uint32_t>(sum);
  return (word & ~kCountMask) | count;
}

// Log-spaced buckets of counts, 16 for every doubling of count + 16: counts below 16 have a bucket each, above it a
// bucket is at most 1/8 wide. Read off the bits of a float, which every instruction set does for many rows at once.
inline constexpr int kCountBuckets = 384;

CPR_INLINE int32_t count_bucket(uint32_t count) {
  const float x = static_cast<float>(static_cast<int32_t>(count + 16));
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return (bits >> 19) - ((127 + 4) << 4);
}

// Buckets of drifts: 4 for every doubling, the top 11 bits of a float, from 2^-40 to 2^24; smaller ones are in bucket
// 0, larger ones in the last.
inline constexpr int kDriftBuckets = 256;

CPR_INLINE int32_t drift_bucket(float drift) {
  int32_t bits;
  __builtin_memcpy(&bits, &drift, sizeof bits);
  const int32_t bucket = (bits >> 21) - ((127 - 40) << 2);
  const int32_t low = bucket < 0 ? 0 : bucket;
  return low > kDriftBuckets - 1 ? kDriftBuckets - 1 : low;
}

inline constexpr float kMaxDrift = 3.402823466e38F;

// Stays finite: NaN and infinity become the largest float.
CPR_INLINE float add_drift(float drift, float norm) {
  const float sum = drift + norm;
  return sum < kMaxDrift ? sum : kMaxDrift;
}

CPR_INLINE uint32_t load_word(const uint32_t* word) { return load_acquire(word); }
CPR_INLINE void store_word(uint32_t* word, uint32_t value) { store_relaxed(word, value); }

}  // namespace cpr
