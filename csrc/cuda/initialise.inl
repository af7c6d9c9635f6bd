// Part of kernels: a table's initial rows, words and list.

// Weight and state of a row.
template <typename G>
CPR_BODY void initialise_row(const G& g, const TableView& t, int64_t row, uint64_t key, float low, float high,
                             float state) {
  const uint64_t row_key = hash2(key, static_cast<uint64_t>(row + t.row_offset));
  g.each([&](int lane) {
    for (int64_t d = lane; d < t.dim; d += G::kLanes) {
      const float x = uniform_element(row_key, static_cast<uint32_t>(d), low, high);
      char* bytes = weight_bytes_of(t, row);
      if (t.format.dtype == DType::kFloat64) {
        reinterpret_cast<double*>(bytes)[d] = static_cast<double>(x);
      } else {
        store_nearest(&x, t.format.dtype, 1, bytes + d * item_size(t.format.dtype));
      }
    }
    for (int array = 0; array < t.num_arrays; ++array) {
      const int64_t columns = t.arrays[array].columns;
      for (int64_t c = lane; c < columns; c += G::kLanes) t.arrays[array].data[row * columns + c] = state;
    }
    if (lane == 0) meta_of(t, row)->state = state;
  });
}

template <typename G>
CPR_BODY void initialise_body(const G& g, const InitialiseArgs& a) {
  const TableView& t = a.view;
  const int64_t slots = t.ssu.slots == nullptr ? 0 : int64_t{t.ssu.groups} * t.ssu.slots_per_group;
  for (int64_t slot = g.index(); slot < slots; slot += g.count()) {
    g.each([&](int lane) {
      if (lane != 0) return;
      t.ssu.slots[slot] = kEmptySlot;
      a.claims[slot] = 0;
    });
  }
  for (int64_t row = g.index(); row < t.num_rows; row += g.count()) {
    initialise_row(g, t, row, a.key, a.low, a.high, a.state);
    g.each([&](int lane) {
      if (lane != 0) return;
      meta_of(t, row)->word = t.track_drift ? kVoidDriftBit : 0;
      if (t.track_drift) *drift_cell(t, row) = 0.0F;
    });
  }
}
