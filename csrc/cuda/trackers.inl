// Part of kernels: words and drifts of rows, outside of updates. Work of one lane; a row is one lane's at a time, and
// everything is of one stream, so loads and stores are plain.

CPR_BODY uint32_t read_word(const TableView& t, int64_t row) {
  const uint32_t word = meta_of(t, row)->word & ~(kParityBits | kVoidDriftBit);
  return t.ssu.slots == nullptr || is_listed(t.ssu, row, word) ? word : word & ~kListedBit;
}

CPR_BODY float read_drift(const TableView& t, int64_t row) {
  return t.track_drift ? drift_of(t, row, meta_of(t, row)->word) : 0.0F;
}

CPR_BODY void write_drift(const TableView& t, int64_t row, float drift) {
  if (!t.track_drift) return;
  *drift_cell(t, row) = drift;
  uint32_t* word = &meta_of(t, row)->word;
  const uint32_t rest = with_parity(t, *word) & ~kVoidDriftBit;
  *word = drift > 0.0F ? rest : rest | kVoidDriftBit;
}

// Replaces all but the parity; a row whose slot is taken isn't listed. Only one lane may list a row in a slot.
CPR_BODY void write_word(const TableView& t, int64_t row, uint32_t word, float drift) {
  write_drift(t, row, drift);
  uint32_t* cell = &meta_of(t, row)->word;
  const uint32_t kept = kParityBits | kVoidDriftBit;
  *cell = with_parity(t, (*cell & kept) | (word & ~kept));
  if ((word & kListedBit) == 0 || t.ssu.slots == nullptr) return;
  uint32_t* slot = ssu_slot_of(t.ssu, row);
  const uint32_t holder = load_acquire(slot);
  if (holder == kEmptySlot || (load_acquire(&meta_of(t, holder)->word) & kListedBit) == 0 ||
      holder == static_cast<uint32_t>(row)) {
    store_relaxed(slot, static_cast<uint32_t>(row));
  }
}

// The word as readers of a snapshot get it.
CPR_BODY uint32_t recorded_word(const TableView& t, int64_t row, uint32_t word) {
  const bool stale = (word & kListedBit) != 0 && (t.ssu.slots == nullptr || !is_listed(t.ssu, row, word));
  return stale ? word & ~kListedBit : word;
}

CPR_BODY bool is_pending(const TableView& t, int64_t row, uint32_t word, float drift) {
  return is_chosen(t.rule, row, word, drift, [&] { return is_listed(t.ssu, row, word); });
}

CPR_BODY bool is_unsettled(const TableView& t, uint32_t word) { return ((word ^ t.parity) & t.parity_bit) != 0; }
