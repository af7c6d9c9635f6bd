#pragma once

#include <cstdint>
#include <vector>

#include "core/hash.hpp"
#include "core/word.hpp"

// What a snapshot takes of one table, as a function of a row's word at `begin`.
namespace cpr {

enum class Select : uint8_t { kNone, kAll, kDirty, kMostUsed, kSampled, kMostDrifted, kRows };

// The rows that kRows takes: bit `row % 8` of byte `row / 8`, by local row.
struct RowMask {
  int64_t num_rows = 0;
  int64_t num_taken = 0;
  std::vector<uint8_t> bits;
};

struct SelectRule {
  Select kind = Select::kNone;
  bool clears_dirty = false;  // base and delta do, priority doesn't
  // kMostUsed, kMostDrifted: counts or drifts above `bucket` are taken, those inside it if their hash is below
  // `boundary` (of 2^32).
  int bucket = 0;
  uint64_t boundary = 0;
  uint64_t key = 0;
  const uint8_t* mask = nullptr;  // kRows: bits of a RowMask, kept alive by the snapshot
};

// The word after the row was settled: a taken row starts counting and drifting anew.
// `parity_bit`: of the snapshot's kind.
CPR_INLINE uint32_t settled_word(const SelectRule& rule, uint32_t parity_bit, uint32_t word, bool taken) {
  const uint32_t flipped = word ^ parity_bit;
  if (!taken) return flipped;
  return (flipped & (rule.clears_dirty ? kParityBits : (kParityBits | kDirtyBit))) | kVoidDriftBit;
}

// kRows may take a clean row, whose parity of the other kind says nothing.
CPR_INLINE uint32_t parity_bit_of(Select kind) {
  return kind == Select::kAll || kind == Select::kRows ? kBaseParityBit : kParityBit;
}

CPR_INLINE bool is_in_mask(const uint8_t* mask, int64_t row) { return (mask[row >> 3] >> (row & 7) & 1) != 0; }

CPR_INLINE bool is_above(const SelectRule& rule, int32_t bucket, int64_t row) {
  if (bucket != rule.bucket) return bucket > rule.bucket;
  return (hash2(rule.key, static_cast<uint64_t>(row)) >> 32) < rule.boundary;
}

// Completes the rule that takes about `rows` rows of the highest buckets; buckets [n]: the rows in each, of which
// bucket 0 is never taken. Returns how many it will take.
CPR_INLINE int64_t choose_highest(const int64_t* buckets, int n, int64_t rows, SelectRule* rule) {
  int64_t above = 0;
  for (int b = n - 1; b > 0; --b) {
    const int64_t inside = buckets[b];
    if (above + inside > rows) {
      const double fraction = static_cast<double>(rows - above) / static_cast<double>(inside);
      rule->bucket = b;
      rule->boundary = static_cast<uint64_t>(fraction * 0x1p32);  // rounded down
      return rows;
    }
    above += inside;
  }
  return above;
}

// `listed`: asked for kSampled alone, whether the row is.
template <typename Listed>
CPR_INLINE bool is_chosen(const SelectRule& rule, int64_t row, uint32_t word, float drift, const Listed& listed) {
  switch (rule.kind) {
    case Select::kAll:
      return true;
    case Select::kDirty:
      return (word & kDirtyBit) != 0;
    case Select::kSampled:
      return listed();
    case Select::kMostUsed:
      return is_above(rule, count_bucket(word & kCountMask), row);
    case Select::kMostDrifted:
      return is_above(rule, drift_bucket(drift), row);
    case Select::kRows:
      return is_in_mask(rule.mask, row);
    case Select::kNone:
      break;
  }
  return false;
}

}  // namespace cpr
