#pragma once

#include <cstddef>
#include <cstdint>

#include "core/views.hpp"

// Settling a row: the first of update pass and background walk that meets a row after `begin` decides with one
// compare-exchange whether the snapshot takes it. The update pass settles before it writes; the walk copies before it
// settles.
namespace cpr {

CPR_INLINE bool is_settled(const TableView& t, uint32_t word) { return ((word ^ t.parity) & t.parity_bit) == 0; }

CPR_INLINE bool is_selected(const TableView& t, const SelectRule& rule, int64_t row, uint32_t word, float drift) {
  return is_chosen(rule, row, word, drift, [&] { return is_listed(t.ssu, row, word); });
}

// The word as readers of the snapshot get it: with the listed bit only where the row really is listed.
CPR_INLINE uint32_t true_word(const TableView& t, int64_t row, uint32_t word) {
  const bool stale = (word & kListedBit) != 0 && (t.ssu.slots == nullptr || !is_listed(t.ssu, row, word));
  return stale ? word & ~kListedBit : word;
}

// `word`: a true_word. From any thread.
CPR_INLINE void log_row(const RowLog& log, int64_t row, uint32_t word, float drift) {
  if ((word & log.given) == 0 && drift == 0.0F) return;
  const uint64_t at = __atomic_fetch_add(&log.book->next, 1, __ATOMIC_RELAXED);
  if (at >= log.capacity) {
    __atomic_store_n(&log.book->lost, 1, __ATOMIC_RELEASE);
    return;
  }
  RowLogEntry& entry = log.entries[at];
  __atomic_store_n(&entry.tag, 0, __ATOMIC_RELAXED);
  entry.row = static_cast<uint32_t>(row);
  entry.word = word & log.given;
  entry.drift = drift;
  __atomic_store_n(&entry.tag, log.tag, __ATOMIC_RELEASE);
}

CPR_INLINE void stage_row(const TableView& t, int64_t row, uint32_t word, float drift) {
  const int64_t slot = __atomic_fetch_add(t.staging.next, 1, __ATOMIC_RELAXED);
  const size_t bytes = static_cast<size_t>(weight_bytes(t.format));
  __builtin_memcpy(t.staging.weight + static_cast<size_t>(slot) * bytes, weight_bytes_of(t, row), bytes);
  float* state = t.staging.state + slot * t.format.state_size;
  for (int a = 0; a < t.num_arrays; ++a) {
    const int64_t columns = t.arrays[a].columns;
    __builtin_memcpy(state, t.arrays[a].data + row * columns, static_cast<size_t>(columns) * sizeof(float));
    state += columns;
  }
  if (t.state_of_row) *state = meta_of(t, row)->state;
  t.staging.rows[slot] = row + t.row_offset;
  t.staging.words[slot] = true_word(t, row, word);
  if (t.track_drift) t.staging.drift[slot] = drift;
}

// Rare, so out of the way of the loop over rows.
[[maybe_unused]] static __attribute__((noinline)) uint32_t settle_pending(const TableView& t, int64_t row,
                                                                          uint32_t word, TrackerDelta* delta) noexcept {
  uint32_t* cell = &meta_of(t, row)->word;
  while (!is_settled(t, word)) {
    const float drift = t.track_drift ? drift_of(t, row, word) : 0.0F;
    const bool taken = is_selected(t, t.rule, row, word, drift);
    const uint32_t next = settled_word(t.rule, t.parity_bit, word, taken);
    if (taken && t.log != nullptr) log_row(*t.log, row, true_word(t, row, word), drift);
    if (__atomic_compare_exchange_n(cell, &word, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      if (taken) {
        stage_row(t, row, word, drift);
        account(t, word, next, delta);
        if (t.track_drift) account_drift(drift, 0.0F, delta);
      }
      // Pairs with the walk's acquire fence: a walk that reads what is written from here on fails its compare-exchange.
      __atomic_thread_fence(__ATOMIC_RELEASE);
      return next;
    }
  }
  return word;
}

// Update pass only. Returns the settled word; afterwards the caller may write the row. Staging must have a free slot.
CPR_INLINE uint32_t settle(const TableView& t, int64_t row, uint32_t word, TrackerDelta* delta) {
  return is_settled(t, word) ? word : settle_pending(t, row, word, delta);
}

}  // namespace cpr
