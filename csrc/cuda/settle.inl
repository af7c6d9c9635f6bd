// Part of kernels: a row that a snapshot may still take is recorded before it is written (core/settle.hpp has the
// rule). Updates and the snapshot's kernels are work of one stream, so nobody else meets the row meanwhile.

// Units are of another type than what lies there.
template <typename Unit>
CPR_BODY Unit load_unit(const Unit* at) {
#if defined(__CUDA_ARCH__)
  return *at;
#else
  Unit unit;
  __builtin_memcpy(&unit, at, sizeof unit);
  return unit;
#endif
}

template <typename Unit>
CPR_BODY void store_unit(const Unit& unit, Unit* at) {
#if defined(__CUDA_ARCH__)
  *at = unit;
#else
  __builtin_memcpy(at, &unit, sizeof unit);
#endif
}

// By a group, Units at a time; a lane has several under way.
template <typename Unit, typename G>
CPR_BODY void copy_units(const G& g, void* to, const void* from, int64_t bytes) {
  constexpr int kUnderWay = 4;
  const Unit* source = static_cast<const Unit*>(from);
  Unit* target = static_cast<Unit*>(to);
  assume_global(source);
  assume_global(target);
  const int64_t n = bytes / static_cast<int64_t>(sizeof(Unit));
  g.each([&](int lane) {
    for (int64_t i = lane; i < n; i += kUnderWay * G::kLanes) {
      Unit held[kUnderWay] = {};
      CPR_UNROLL
      for (int j = 0; j < kUnderWay; ++j) {
        if (i + j * G::kLanes < n) held[j] = load_unit(source + i + j * G::kLanes);
      }
      CPR_UNROLL
      for (int j = 0; j < kUnderWay; ++j) {
        if (i + j * G::kLanes < n) store_unit(held[j], target + i + j * G::kLanes);
      }
    }
  });
}

// `bytes`: a multiple of 2, as are the addresses.
template <typename G>
CPR_BODY void copy_bytes(const G& g, void* to, const void* from, int64_t bytes) {
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(bytes);
  if (all % 16 == 0) {
    copy_units<Pack<uint32_t, 4>>(g, to, from, bytes);
  } else if (all % 4 == 0) {
    copy_units<uint32_t>(g, to, from, bytes);
  } else {
    copy_units<uint16_t>(g, to, from, bytes);
  }
}

template <typename G>
CPR_BODY void copy_state(const G& g, const TableView& t, int64_t row, float* to) {
  for (int a = 0; a < t.num_arrays; ++a) {
    const int64_t columns = t.arrays[a].columns;
    copy_bytes(g, to, t.arrays[a].data + row * columns, columns * static_cast<int64_t>(sizeof(float)));
    to += columns;
  }
  if (!t.state_of_row) return;
  g.each([&](int lane) {
    if (lane == 0) *to = meta_of(t, row)->state;
  });
}

template <typename G>
CPR_BODY void copy_row(const G& g, const TableView& t, int64_t row, char* weight, float* state) {
  copy_bytes(g, weight, weight_bytes_of(t, row), weight_bytes(t.format));
  copy_state(g, t, row, state);
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
  if (!fits) return false;
  char* weight = area->records + at + sizeof(RecordHead);
  copy_row(g, t, row, weight, reinterpret_cast<float*>(weight + rounded_to_16(weight_bytes(t.format))));
  return true;
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
