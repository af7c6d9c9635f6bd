// Part of kernels: unique rows of one table among ids, whose sorted keys lie in `update`: gradients for torch's own
// optimizers, which write the rows, and what is done to rows outside of updates.

// Number of the first unique row that isn't below row number `number`.
CPR_BODY int64_t first_unique(const UniqueArgs& a, int64_t unique, int64_t number) {
  int64_t low = 0;
  int64_t high = unique;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row_number(a.update.keys[a.starts[middle]]) < number) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A unique row: its local number and its keys.
struct UniqueRow {
  int64_t number = 0;  // among all unique rows
  int64_t row = 0;
  int64_t start = 0;
  int64_t count = 0;
};

// The row's settled word, before it or its word is written.
template <typename G>
CPR_BODY uint32_t settle_row(const G& g, const UniqueArgs& a, int64_t row) {
  const TableView& t = a.update.tables[a.update.only_table].view;
  typename G::template PerLane<uint32_t> words;
  g.each([&](int lane) {
    if (lane == 0) words[lane] = meta_of(t, row)->word;
  });
  return settle_on_stream(g, t, static_cast<uint32_t>(a.update.only_table), a.update.touched, row, g.from_first(words));
}

// Word and claim of a slot, as an update leaves them but for the drift, which only the optimizer knows.
template <UniqueStep kStep, typename G>
CPR_BODY void track_row(const G& g, const UniqueArgs& a, const UniqueRow& of, bool sampled) {
  const TableRecord& table = a.update.tables[a.update.only_table];
  const uint32_t kept = kVoidDriftBit | (kStep == UniqueStep::kTrack ? kDirtyBit : 0);
  const uint32_t word = settle_row(g, a, of.row);
  g.each([&](int lane) {
    if (lane != 0) return;
    const uint32_t next = tracked_word(table.view, word, of.count, sampled);
    meta_of(table.view, of.row)->word = (next & ~kept) | (word & kept);
    a.sampled[of.number] = sampled ? 1 : 0;
    if (sampled) claim_slot(table, of.row);
  });
}

template <typename T, typename G>
CPR_BODY void write_gradient(const G& g, const UpdateArgs& a, const UniqueRow& of, T* out) {
  constexpr int kBlocks = kTileBlocks * static_cast<int>(sizeof(float)) / static_cast<int>(sizeof(T));
  const TableRecord& table = a.tables[a.only_table];
  const TableView& t = table.view;
  const T scale = table.scale_by_freq != 0 ? T{1} / static_cast<T>(of.count) : T{1};
  g.each([&](int lane) {
    for (int64_t column = 0; column < t.dim; column += kBlocks * kBlockColumns) {
      Tile<T, kBlocks * G::kWidth> sum{};
      sum_run<kBlocks, G::kWidth>(a, t, of.start, of.count, lane, column, &sum);
      if (scale != T{1}) {
        CPR_UNROLL
        for (int j = 0; j < kBlocks * G::kWidth; ++j) sum.at[j] = sum.at[j] * scale;
      }
      write_tile<G::kWidth, kBlocks>(sum, lane, column, t.dim, out);
    }
  });
}

// Without sums of chunks: each key is looked at.
template <typename G>
CPR_BODY bool any_sampled(const G& g, const uint64_t* keys, const UniqueRow& of) {
  typename G::template PerLane<bool> found;
  g.each([&](int lane) {
    for (int64_t i = of.start + lane; i < of.start + of.count; i += G::kLanes) {
      found[lane] = found[lane] || (keys[i] & kSampledFlag) != 0;
    }
  });
  return g.any(found);
}

CPR_BODY double number_at(const TableView& t, int64_t row, int64_t column) {
  const char* bytes = weight_bytes_of(t, row);
  switch (t.format.dtype) {
    case DType::kFloat64:
      return reinterpret_cast<const double*>(bytes)[column];
    case DType::kFloat32:
      return static_cast<double>(reinterpret_cast<const float*>(bytes)[column]);
    case DType::kFloat16:
      return static_cast<double>(float_from_float16(reinterpret_cast<const uint16_t*>(bytes)[column]));
    default:
      return static_cast<double>(float_from_bfloat16(reinterpret_cast<const uint16_t*>(bytes)[column]));
  }
}

// In the order of the columns, by one lane. `type`: as UniqueArgs.
CPR_BODY double norm_of_row(const TableView& t, int64_t row, int type) {
  double sum = 0.0;
  for (int64_t d = 0; d < t.dim; ++d) {
    const double x = number_at(t, row, d);
    const double size = x < 0.0 ? -x : x;
    if (type == 0) {
      sum = size > sum || size != size ? size : sum;
    } else {
      sum = sum + (type == 2 ? size * size : size);
    }
  }
#if defined(__CUDA_ARCH__)
  return type == 2 ? __dsqrt_rn(sum) : sum;
#else
  return type == 2 ? __builtin_sqrt(sum) : sum;
#endif
}

CPR_BODY void scale_number(const TableView& t, int64_t row, int64_t column, double scale) {
  char* bytes = weight_bytes_of(t, row);
  if (t.format.dtype == DType::kFloat64) {
    double* x = reinterpret_cast<double*>(bytes) + column;
    *x = *x * scale;
    return;
  }
  const float scaled = static_cast<float>(number_at(t, row, column)) * static_cast<float>(scale);
  store_nearest(&scaled, t.format.dtype, 1, bytes + column * item_size(t.format.dtype));
}

// torch's embedding_renorm_, with its 1e-7.
template <typename G>
CPR_BODY void renormalise_row(const G& g, const UniqueArgs& a, int64_t row) {
  const TableView& t = a.update.tables[a.update.only_table].view;
  typename G::template PerLane<double> norms;
  typename G::template PerLane<double> lengths;
  g.each([&](int lane) {
    if (lane != 0) return;
    norms[lane] = norm_of_row(t, row, a.norm_type);
    lengths[lane] = t.track_drift && a.norm_type != 2 ? norm_of_row(t, row, 2) : norms[lane];
  });
  const double norm = g.from_first(norms);
  if (!(norm > a.max_norm)) return;
  const double scale = a.max_norm / (norm + 1e-7);
  const uint32_t word = settle_row(g, a, row);
  g.sync();  // lane 0 has read the row
  g.each([&](int lane) {
    for (int64_t d = lane; d < t.dim; d += G::kLanes) scale_number(t, row, d, scale);
    if (lane != 0) return;
    meta_of(t, row)->word = word;
    if (t.track_dirty) mark_row(t, row);
    write_drift(t, row, add_drift(read_drift(t, row), static_cast<float>(lengths[lane] * (1.0 - scale))));
    add_relaxed(a.count, uint64_t{1});
  });
}

template <UniqueStep kStep, typename T, typename G>
CPR_BODY void unique_row(const G& g, const UniqueArgs& a, const UniqueRow& of, int64_t place) {
  if constexpr (kStep == UniqueStep::kRenormalise) {
    renormalise_row(g, a, of.row);
  } else if constexpr (kStep == UniqueStep::kTrack) {
    track_row<kStep>(g, a, of, any_sampled(g, a.update.keys, of));
  } else if constexpr (kStep == UniqueStep::kEnterSampled) {
    if (a.sampled[of.number] != 0) enter_row(g, a.update, of.start);
  } else {
    g.each([&](int lane) {
      if (lane == 0) a.rows[place] = of.row;
    });
    const int64_t dim = a.update.tables[a.update.only_table].view.dim;
    write_gradient(g, a.update, of, static_cast<T*>(a.values) + place * dim);
    track_row<kStep>(g, a, of, sampled_run(g, a.update, of.start, of.count));
  }
}

// T: of the gradients. The step is known when it is compiled: each has the registers that it needs.
template <UniqueStep kStep, typename T, typename G>
CPR_BODY void unique_body(const G& g, const UniqueArgs& a) {
  const bool failed = a.update.state->failed != 0;
  const int64_t unique = failed ? 0 : *a.unique;
  const TableRecord& table = a.update.tables[a.update.only_table];
  const int64_t begin = first_unique(a, unique, table.first_row);
  const int64_t end = first_unique(a, unique, table.first_row + table.view.num_rows);
  for (int64_t u = begin + g.index(); u < end; u += g.count()) {
    const int64_t start = a.starts[u];
    const int64_t next = u + 1 < unique ? a.starts[u + 1] : a.update.num_ids;
    const int64_t row = row_number(a.update.keys[start]) - table.first_row;
    unique_row<kStep, T>(g, a, {u, row, start, next - start}, u - begin);
  }
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane != 0) return;
    if (kStep == UniqueStep::kGradient) *a.count = static_cast<uint64_t>(end - begin);
    if (kStep == UniqueStep::kEnterSampled && !failed) a.update.state->step += a.steps;
  });
}

template <typename G>
CPR_BODY void read_keys_body(const G& g, const IdArgs& a) {
  const TableRecord& table = a.tables[a.table];
  const bool samples = a.samples && table.view.ssu.slots != nullptr;
  const uint64_t step = static_cast<uint64_t>(a.state->step);
  g.each([&](int lane) {
    for (int64_t p = g.index() * G::kLanes + lane; p < a.num_ids; p += g.count() * G::kLanes) {
      const int64_t id = integer_at(a.ids, a.ids_are_64bit, p);
      const bool good = id >= 0 && id < table.view.num_rows;
      if (!good) note_bad_id(a.state, a.table, p, id);
      const uint64_t row = static_cast<uint64_t>(table.first_row + (good ? id : 0));
      const uint64_t position = static_cast<uint64_t>(p);
      const uint64_t bits =
          samples ? sample_bits(a.sample_key, step, position / 64, a.log2_period) >> (position & 63) & 1 : 0;
      a.keys[p] = (row << 32) | (bits << 31) | position;
    }
  });
}
