// Part of kernels.cpp: the sub-sampled used list (CPR section on SSU), made free of order. A sampled row enters the
// slot of its hash and evicts who is there; among the rows that enter one slot in one step, the largest (hash of step
// and row, row) wins.

inline constexpr int64_t kSlotAhead = 24;

CPR_INLINE bool wins(const SsuView& ssu, uint64_t step, uint64_t row, uint64_t holder) {
  const uint64_t a = hash2(hash2(ssu.key, step), row) >> 32;
  const uint64_t b = hash2(hash2(ssu.key, step), holder) >> 32;
  return a != b ? a > b : row > holder;
}

// While a snapshot is taken, its walk empties slots too, and who is evicted must be settled as long as it still is
// listed.
CPR_INLINE void enter_beside_walk(const TableView& t, int64_t row, uint64_t step, TrackerDelta* delta) {
  uint64_t* slot = ssu_slot_of(t.ssu, row);
  const uint64_t stamp = step & kStampMask;
  const uint64_t entry = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (entry != kEmptySlot && !ssu_holds(entry, row)) {
    const uint64_t holder = entry >> 24;
    if ((entry & kStampMask) == stamp && !wins(t.ssu, step, static_cast<uint64_t>(row), holder)) return;
    const int64_t held = static_cast<int64_t>(holder);
    settle(t, held, load_word(&t.meta[held].word), delta);
  }
  const uint64_t entered = (static_cast<uint64_t>(row) << 24) | stamp;
  if (__atomic_exchange_n(slot, entered, __ATOMIC_ACQ_REL) == kEmptySlot) ++delta->listed;
}

// `rows` are settled, unique and were updated in this step.
static void enter_sampled(const TableView& t, const uint32_t* rows, int64_t n, uint64_t step,
                          TrackerDelta* delta) noexcept {
  if (t.walking) {
    for (int64_t i = 0; i < n; ++i) enter_beside_walk(t, rows[i], step, delta);
    return;
  }
  const SsuView& ssu = t.ssu;
  const uint64_t stamp = step & kStampMask;
  int64_t listed = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kSlotAhead < n) __builtin_prefetch(ssu_slot_of(ssu, rows[i + kSlotAhead]), 1);
    const uint64_t row = rows[i];
    uint64_t* slot = ssu_slot_of(ssu, rows[i]);
    const uint64_t entry = *slot;
    const bool same_step = (entry & kStampMask) == stamp && entry != kEmptySlot;
    if (__builtin_expect(same_step, 0) && !ssu_holds(entry, rows[i]) && !wins(ssu, step, row, entry >> 24)) continue;
    listed += entry == kEmptySlot ? 1 : 0;
    __atomic_store_n(slot, (row << 24) | stamp, __ATOMIC_RELAXED);
  }
  delta->listed += listed;
}
