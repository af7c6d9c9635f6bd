// Part of kernels: the summed gradients of one table's unique rows for torch's own optimizers, which write the rows:
// what is an update's but for the step. The words are brought up to date; nothing else is written of the table.

// Number of the first unique row that isn't below row number `number`.
CPR_BODY int64_t first_unique(const UpdateArgs& a, int64_t unique, int64_t number) {
  int64_t low = 0;
  int64_t high = unique;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row_number(a.keys[a.batch.starts[middle]]) < number) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The row's words and list claim, as update_row leaves them; the drift is torch's optimizer's and unknown.
template <typename G>
CPR_BODY void track_run(const G& g, const UpdateArgs& a, int64_t row, int64_t start, int64_t count) {
  const TableRecord& table = a.tables[a.only_table];
  const TableView& t = table.view;
  const bool sampled = sampled_run(g, a, start, count);
  typename G::template PerLane<uint32_t> words;
  g.each([&](int lane) {
    if (lane == 0) words[lane] = meta_of(t, row)->word;
  });
  const uint32_t index = static_cast<uint32_t>(a.only_table);
  const uint32_t word = settle_on_stream(g, t, index, a.touched, row, g.from_first(words));
  g.each([&](int lane) {
    if (lane != 0) return;
    const uint32_t next = tracked_word(t, word, count, sampled);
    meta_of(t, row)->word = (next & ~kVoidDriftBit) | (word & kVoidDriftBit);
    a.sampled[start] = sampled ? 1 : 0;
    if (sampled) claim_slot(table, row);
  });
}

template <typename T, typename G>
CPR_BODY void write_gradient(const G& g, const UpdateArgs& a, int64_t start, int64_t count, T* out) {
  constexpr int kBlocks = kTileBlocks * static_cast<int>(sizeof(float)) / static_cast<int>(sizeof(T));
  const TableRecord& table = a.tables[a.only_table];
  const TableView& t = table.view;
  const T scale = table.scale_by_freq != 0 ? T{1} / static_cast<T>(count) : T{1};
  g.each([&](int lane) {
    for (int64_t column = 0; column < t.dim; column += kBlocks * kBlockColumns) {
      Tile<T, kBlocks * G::kWidth> sum{};
      sum_run<kBlocks, G::kWidth>(a, t, start, count, lane, column, &sum);
      if (scale != T{1}) {
        CPR_UNROLL
        for (int j = 0; j < kBlocks * G::kWidth; ++j) sum.at[j] = sum.at[j] * scale;
      }
      write_tile<G::kWidth, kBlocks>(sum, lane, column, t.dim, out);
    }
  });
}

template <typename T, typename G>
CPR_BODY void gradient_body(const G& g, const GradientArgs& args) {
  const UpdateArgs& a = args.update;
  const bool failed = a.state->failed != 0;
  const int64_t unique = failed ? 0 : *a.batch.unique;
  const TableRecord& table = a.tables[a.only_table];
  const int64_t begin = first_unique(a, unique, table.first_row);
  const int64_t end = first_unique(a, unique, table.first_row + table.view.num_rows);
  g.each([&](int lane) {
    if (g.index() == 0 && lane == 0) *args.count = end - begin;
  });
  for (int64_t u = begin + g.index(); u < end; u += g.count()) {
    const int64_t start = a.batch.starts[u];
    const int64_t count = (u + 1 < unique ? a.batch.starts[u + 1] : a.num_ids) - start;
    const int64_t row = row_number(a.keys[start]) - table.first_row;
    g.each([&](int lane) {
      if (lane == 0) args.rows[u - begin] = row;
    });
    write_gradient(g, a, start, count, static_cast<T*>(args.values) + (u - begin) * table.view.dim);
    track_run(g, a, row, start, count);
  }
}
