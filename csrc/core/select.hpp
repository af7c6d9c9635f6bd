#pragma once

#include <cstdint>

#include "core/hash.hpp"
#include "core/word.hpp"

// What a snapshot takes of one table, as a function of a row's word at `begin`.
namespace cpr {

enum class Select : uint8_t { kNone, kAll, kDirty, kMostUsed, kSampled, kMostDrifted };

struct SelectRule {
  Select kind = Select::kNone;
  bool clears_dirty = false;  // base and delta do, priority doesn't
  // kMostUsed, kMostDrifted: counts or drifts above `bucket` are taken, those inside it if their hash is below
  // `boundary` (of 2^32).
  int bucket = 0;
  uint64_t boundary = 0;
  uint64_t key = 0;
};

// The word after the row was settled: a taken row starts counting and drifting anew.
// `parity_bit`: of the snapshot's kind.
CPR_INLINE uint32_t settled_word(const SelectRule& rule, uint32_t parity_bit, uint32_t word, bool taken) {
  const uint32_t flipped = word ^ parity_bit;
  if (!taken) return flipped;
  return (flipped & (rule.clears_dirty ? kParityBits : (kParityBits | kDirtyBit))) | kVoidDriftBit;
}

CPR_INLINE uint32_t parity_bit_of(Select kind) { return kind == Select::kAll ? kBaseParityBit : kParityBit; }

CPR_INLINE bool is_above(const SelectRule& rule, int32_t bucket, int64_t row) {
  if (bucket != rule.bucket) return bucket > rule.bucket;
  return (hash2(rule.key, static_cast<uint64_t>(row)) >> 32) < rule.boundary;
}

}  // namespace cpr
