#pragma once

#include <cstdint>

#include "core/views.hpp"

// Settling a row: the first of update pass and background walk that meets a row after `begin` decides with one
// compare-exchange whether the snapshot takes it. The update pass settles before it writes; the walk copies before it
// settles.
namespace cpr {

CPR_INLINE bool is_settled(const TableView& t, uint32_t word) { return ((word ^ t.parity) & kParityBit) == 0; }

CPR_INLINE bool is_selected(const TableView& t, const SelectRule& rule, int64_t row, uint32_t word) {
  switch (rule.kind) {
    case Select::kAll:
      return true;
    case Select::kDirty:
      return (word & kDirtyBit) != 0;
    case Select::kSampled:
      return is_listed(t.ssu, row, word);
    case Select::kMostUsed: {
      const int bucket = count_bucket(word & kCountMask);
      if (bucket != rule.bucket) return bucket > rule.bucket;
      return (hash2(rule.key, static_cast<uint64_t>(row)) >> 32) < rule.boundary;
    }
    case Select::kNone:
      break;
  }
  return false;
}

// The word as readers of the snapshot get it: with the listed bit only where the row really is listed.
CPR_INLINE uint32_t true_word(const TableView& t, int64_t row, uint32_t word) {
  const bool stale = (word & kListedBit) != 0 && (t.ssu.slots == nullptr || !is_listed(t.ssu, row, word));
  return stale ? word & ~kListedBit : word;
}

CPR_INLINE void stage_row(const TableView& t, int64_t row, uint32_t word) {
  const int64_t slot = __atomic_fetch_add(t.staging.next, 1, __ATOMIC_RELAXED);
  const float* weight = t.weight + row * t.dim;
  float* out = t.staging.weight + slot * t.dim;
  for (int64_t d = 0; d < t.dim; ++d) out[d] = weight[d];
  t.staging.rows[slot] = row + t.row_offset;
  t.staging.state[slot] = t.meta[row].state;
  t.staging.words[slot] = true_word(t, row, word);
}

// Update pass only. Returns the settled word; afterwards the caller may write the row. Staging must have a free slot.
CPR_INLINE uint32_t settle(const TableView& t, int64_t row, uint32_t word, TrackerDelta* delta) {
  uint32_t* cell = &t.meta[row].word;
  while (!is_settled(t, word)) {
    const bool taken = is_selected(t, t.rule, row, word);
    const uint32_t next = settled_word(t.rule, word, taken);
    if (__atomic_compare_exchange_n(cell, &word, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      if (taken) {
        stage_row(t, row, word);
        account(t, word, next, delta);
      }
      // Pairs with the walk's acquire fence: a walk that reads what is written from here on fails its compare-exchange.
      __atomic_thread_fence(__ATOMIC_RELEASE);
      return next;
    }
  }
  return word;
}

}  // namespace cpr
