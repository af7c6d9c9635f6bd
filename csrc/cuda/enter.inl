// Part of kernels: ends an update. Sampled rows that won their slots in this step enter the list and evict who was
// there (csrc/cpu/ssu.inl); the step is counted. In a step that was skipped no slot was claimed.

template <typename G>
CPR_BODY void enter_row(const G& g, const UpdateArgs& a, int64_t start) {
  const int64_t number = row_number(a.keys[start]);
  const TableRecord& table = a.tables[table_of_row(a, number)];
  const SsuView& ssu = table.view.ssu;
  if (ssu.slots == nullptr) return;
  const int64_t row = number - table.first_row;
  const uint64_t slot = ssu_slot(ssu, ssu_hash(ssu, static_cast<uint64_t>(row)));
  g.each([&](int lane) {
    if (lane != 0 || load_acquire(table.claims + slot) != static_cast<uint32_t>(row) + 1) return;
    store_relaxed(ssu.slots + slot, static_cast<uint32_t>(row));
    store_relaxed(table.claims + slot, 0);
  });
}

// Nothing here reads what the first group counts.
template <typename G>
CPR_BODY void enter_body(const G& g, const UpdateArgs& a) {
  if (a.state->failed != 0) return;
  const int64_t unique = *a.unique;
  for (int64_t u = g.index(); u < unique; u += g.count()) {
    if (a.sampled[u] != 0) enter_row(g, a, a.starts[u]);
  }
  if (g.index() != 0) return;
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
