// Part of kernels: a row that a snapshot may still take is recorded before it is written (core/settle.hpp has the
// rule). Updates and the snapshot's kernels are work of one stream, so nobody else meets the row meanwhile.

// `bytes`: a multiple of 2, as are the addresses.
template <typename G>
CPR_BODY void copy_bytes(const G& g, char* to, const char* from, int64_t bytes) {
  const bool packed =
      (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0 && bytes % 16 == 0;
  g.each([&](int lane) {
    if (packed) {
      const Pack<uint32_t, 4>* source = reinterpret_cast<const Pack<uint32_t, 4>*>(from);
      Pack<uint32_t, 4>* target = reinterpret_cast<Pack<uint32_t, 4>*>(to);
      for (int64_t i = lane; i < bytes / 16; i += G::kLanes) target[i] = source[i];
    } else {
      const uint16_t* source = reinterpret_cast<const uint16_t*>(from);
      uint16_t* target = reinterpret_cast<uint16_t*>(to);
      for (int64_t i = lane; i < bytes / 2; i += G::kLanes) target[i] = source[i];
    }
  });
}

template <typename G>
CPR_BODY void copy_state(const G& g, const TableView& t, int64_t row, float* to) {
  for (int a = 0; a < t.num_arrays; ++a) {
    const int64_t columns = t.arrays[a].columns;
    const float* from = t.arrays[a].data + row * columns;
    g.each([&](int lane) {
      for (int64_t c = lane; c < columns; c += G::kLanes) to[c] = from[c];
    });
    to += columns;
  }
  if (!t.state_of_row) return;
  g.each([&](int lane) {
    if (lane == 0) *to = meta_of(t, row)->state;
  });
}

// Weight and state behind the head.
template <typename G>
CPR_BODY void fill_record(const G& g, const TableView& t, int64_t row, char* record) {
  const int64_t bytes = weight_bytes(t.format);
  char* weight = record + sizeof(RecordHead);
  copy_bytes(g, weight, weight_bytes_of(t, row), bytes);
  copy_state(g, t, row, reinterpret_cast<float*>(weight + rounded_to_16(bytes)));
}

// False where there is no room: the row then keeps its marks, and the snapshot fails.
template <typename G>
CPR_BODY bool record_touched(const G& g, const TableView& t, uint32_t table, TouchedArea* area, int64_t row,
                             uint32_t word, float drift) {
  const uint64_t bytes = static_cast<uint64_t>(record_bytes(t.format));
  typename G::template PerLane<uint64_t> claimed;
  g.each([&](int lane) {
    if (lane == 0) claimed[lane] = add_relaxed(&area->used, bytes);
  });
  const uint64_t at = g.from_first(claimed);
  const bool fits = at + bytes <= area->capacity;
  g.each([&](int lane) {
    if (lane != 0) return;
    if (!fits) {
      min_relaxed(&area->lost, at);
      return;
    }
    *reinterpret_cast<RecordHead*>(area->records + at) = {static_cast<uint32_t>(row), table,
                                                          recorded_word(t, row, word), drift};
  });
  if (fits) fill_record(g, t, row, area->records + at);
  return fits;
}

// Before a row, its state, drift or word is written by an update: all lanes of the group come with the same row and its
// word. Returns the settled word, which the caller stores (or what it makes of it). `area` nullptr: rows aren't
// taken.
template <typename G>
CPR_BODY uint32_t settle_on_stream(const G& g, const TableView& t, uint32_t table, TouchedArea* area, int64_t row,
                                   uint32_t word) {
  if (!is_unsettled(t, word)) return word;
  const float drift = t.track_drift ? drift_of(t, row, word) : 0.0F;
  bool taken = area != nullptr && is_pending(t, row, word, drift);
  if (taken) {
    taken = record_touched(g, t, table, area, row, word, drift);
    g.sync();  // before the caller writes what other lanes have copied
  }
  return settled_word(t.rule, t.parity_bit, word, taken);
}
