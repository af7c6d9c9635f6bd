// Part of kernels.cpp: the sub-sampled used list (CPR section on SSU), made free of order. A sampled row enters the
// slot of its hash and evicts who is there; among the rows that enter one slot in one step, the largest (hash of step
// and row, row) wins.

inline constexpr int64_t kSlotAhead = 8;

CPR_INLINE bool wins(const SsuView& ssu, uint64_t step, uint64_t row, uint64_t holder) {
  const uint64_t a = hash2(hash2(ssu.key, step), row) >> 32;
  const uint64_t b = hash2(hash2(ssu.key, step), holder) >> 32;
  return a != b ? a > b : row > holder;
}

// `rows` are settled, unique and were updated in this step.
static void enter_sampled(const TableView& t, const int64_t* rows, int64_t n, uint64_t step,
                          TrackerDelta* delta) noexcept {
  const SsuView& ssu = t.ssu;
  const uint64_t stamp = step & kStampMask;
  // While a snapshot is taken, its walk empties slots too, and who is evicted must be settled as long as it still is
  // listed.
  const bool shared = t.walking;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kSlotAhead < n) __builtin_prefetch(ssu_slot_of(ssu, rows[i + kSlotAhead]), 1);
    const int64_t row = rows[i];
    uint64_t* slot = ssu_slot_of(ssu, row);
    const uint64_t entry = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (entry != kEmptySlot && !ssu_holds(entry, row)) {
      const uint64_t holder = entry >> 24;
      if ((entry & kStampMask) == stamp && !wins(ssu, step, static_cast<uint64_t>(row), holder)) continue;
      const int64_t held = static_cast<int64_t>(holder);
      if (shared) settle(t, held, load_word(&t.meta[held].word), delta);
    }
    const uint64_t entered = (static_cast<uint64_t>(row) << 24) | stamp;
    if (!shared) {
      delta->listed += entry == kEmptySlot ? 1 : 0;
      __atomic_store_n(slot, entered, __ATOMIC_RELAXED);
    } else if (__atomic_exchange_n(slot, entered, __ATOMIC_ACQ_REL) == kEmptySlot) {
      ++delta->listed;
    }
  }
}
