// Part of kernels: ends an update. Sampled rows that won their slots in this step enter the list and evict who was
// there (csrc/cpu/ssu.inl); the step is counted. In a step that was skipped no slot was claimed, and `sampled` may be
// anything.

// A snapshot that takes listed rows must have met who is evicted.
template <typename G>
CPR_BODY void settle_holder(const G& g, const TableView& t, uint32_t table, TouchedArea* touched, int64_t holder) {
  typename G::template PerLane<uint32_t> words;
  g.each([&](int lane) {
    if (lane == 0) words[lane] = meta_of(t, holder)->word;
  });
  const uint32_t word = g.from_first(words);
  const uint32_t settled = settle_on_stream(g, t, table, touched, holder, word);
  if (settled == word) return;
  g.each([&](int lane) {
    if (lane == 0) meta_of(t, holder)->word = settled;
  });
}

template <typename G>
CPR_BODY void enter_row(const G& g, const UpdateArgs& a, int64_t start) {
  const int64_t number = row_number(a.keys[start]);
  const int64_t index = table_of_row(a, number);
  const TableRecord& table = a.tables[index];
  const SsuView& ssu = table.view.ssu;
  if (ssu.slots == nullptr) return;
  const int64_t row = number - table.first_row;
  const uint64_t slot = ssu_slot(ssu, ssu_hash(ssu, static_cast<uint64_t>(row)));
  typename G::template PerLane<uint32_t> claims;
  typename G::template PerLane<uint32_t> holders;
  g.each([&](int lane) {
    if (lane != 0) return;
    claims[lane] = load_acquire(table.claims + slot);
    holders[lane] = load_acquire(ssu.slots + slot);
  });
  if (g.from_first(claims) != static_cast<uint32_t>(row) + 1) return;
  const uint32_t holder = g.from_first(holders);
  if (holder != kEmptySlot && holder != static_cast<uint32_t>(row)) {
    settle_holder(g, table.view, static_cast<uint32_t>(index), a.touched, holder);
  }
  g.each([&](int lane) {
    if (lane != 0) return;
    store_relaxed(ssu.slots + slot, static_cast<uint32_t>(row));
    store_relaxed(table.claims + slot, 0);
  });
}

// Nothing here reads what the first group counts.
template <typename G>
CPR_BODY void enter_body(const G& g, const UpdateArgs& a) {
  if (a.state->failed != 0) return;
  const int64_t keys = a.end_window * kWindowKeys;
  const int64_t end = keys < a.num_ids ? keys : a.num_ids;
  for (int64_t first = a.begin_window * kWindowKeys + g.index() * G::kLanes; first < end;
       first += g.count() * G::kLanes) {
    typename G::template PerLane<bool> found;
    g.each([&](int lane) { found[lane] = first + lane < end && a.sampled[first + lane] != 0; });
    if (!g.any(found)) continue;
    for (int64_t at = first; at < first + G::kLanes && at < end; ++at) {
      if (a.sampled[at] != 0) enter_row(g, a, at);
    }
  }
  if (g.index() != 0 || !a.ends_step) return;
  g.each([&](int lane) {
    if (lane != 0) return;
    if (a.state->not_finite != 0) {
      ++a.state->skipped;
    } else {
      ++a.state->step;
    }
    a.state->not_finite = 0;
  });
}
