// Part of kernels.cpp: the sub-sampled used list (CPR section on SSU), made free of order. A sampled row enters the
// slot of its hash and evicts who is there. Rows of one step come in ascending order, so of those that enter one slot
// the largest stays, however many units, threads or deferred steps there are.

inline constexpr int64_t kSlotBlock = 32;  // slots looked up together

// While a snapshot is taken, its walk empties slots too, and who is evicted must be settled as long as it still is
// listed.
CPR_INLINE void enter_beside_walk(const TableView& t, uint32_t row, TrackerDelta* delta) {
  uint32_t* slot = ssu_slot_of(t.ssu, row);
  const uint32_t holder = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (holder != kEmptySlot && holder != row) settle(t, holder, load_word(&meta_of(t, holder)->word), delta);
  if (__atomic_exchange_n(slot, row, __ATOMIC_ACQ_REL) == kEmptySlot) ++delta->slots_used;
}

// `rows`: settled and sampled rows of one unit, step by step, ascending within a step.
static void enter_sampled(const TableView& t, const uint32_t* rows, int64_t n, TrackerDelta* delta) noexcept {
  if (t.walking) {
    for (int64_t i = 0; i < n; ++i) enter_beside_walk(t, rows[i], delta);
    return;
  }
  int64_t filled = 0;
  uint32_t* slots[kSlotBlock];
  for (int64_t begin = 0; begin < n; begin += kSlotBlock) {
    const int64_t count = n - begin < kSlotBlock ? n - begin : kSlotBlock;
    for (int64_t i = 0; i < count; ++i) {
      slots[i] = ssu_slot_of(t.ssu, rows[begin + i]);
      __builtin_prefetch(slots[i], 1);
    }
    for (int64_t i = 0; i < count; ++i) {
      filled += *slots[i] == kEmptySlot ? 1 : 0;
      __atomic_store_n(slots[i], rows[begin + i], __ATOMIC_RELAXED);
    }
  }
  delta->slots_used += filled;
}
