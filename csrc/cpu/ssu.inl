// Part of kernels.cpp: the sub-sampled used list (CPR section on SSU), made free of order. A sampled row enters the
// slot of its hash and evicts who is there; among the rows that enter one slot in one step, the largest (hash of step
// and row, row) wins.

inline constexpr int64_t kSlotAhead = 8;

CPR_INLINE bool wins(const SsuView& ssu, uint64_t step, uint64_t row, uint64_t holder) {
  const uint64_t a = hash2(hash2(ssu.key, step), row) >> 32;
  const uint64_t b = hash2(hash2(ssu.key, step), holder) >> 32;
  return a != b ? a > b : row > holder;
}

CPR_INLINE void set_listed(const TableView& t, uint64_t row, bool listed, TrackerDelta* delta) {
  uint32_t* cell = &t.meta[row].word;
  const uint32_t word = *cell;
  const uint32_t next = listed ? (word | kListedBit) : (word & ~kListedBit);
  if (next == word) return;
  store_word(cell, next);
  delta->listed += listed ? 1 : -1;
}

// `rows` are settled, unique and were updated in this step.
static void enter_sampled(const TableView& t, const int64_t* rows, int64_t n, uint64_t step,
                          TrackerDelta* delta) noexcept {
  const SsuView& ssu = t.ssu;
  const uint64_t stamp = step & kStampMask;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kSlotAhead < n) {
      __builtin_prefetch(ssu.slots + ssu_slot(ssu, ssu_hash(ssu, static_cast<uint64_t>(rows[i + kSlotAhead]))), 1);
    }
    const uint64_t row = static_cast<uint64_t>(rows[i]);
    uint64_t* slot = ssu.slots + ssu_slot(ssu, ssu_hash(ssu, row));
    const uint64_t entry = *slot;
    const uint64_t holder = entry >> 24;
    if (entry != kEmptySlot && holder != row) {
      const int64_t held = static_cast<int64_t>(holder);
      const uint32_t word = settle(t, held, load_word(&t.meta[held].word), delta);
      if ((word & kListedBit) != 0) {
        if ((entry & kStampMask) == stamp && !wins(ssu, step, row, holder)) continue;
        set_listed(t, holder, false, delta);
      }
    }
    *slot = (row << 24) | stamp;
    set_listed(t, row, true, delta);
  }
}
