// Part of kernels: the ordered sum of the gradients of equal rows. The keys of a row are neighbours; chunks of 32 that
// are full, and chunks of 32 sums of full chunks and so on, are summed before the update, each by one group, so that
// many groups share a hot row. The order is that of core/ordered_sum.hpp, whoever sums.

inline constexpr int kSumBits = 5;
static_assert(kSumFanout == int64_t{1} << kSumBits);

// Items of 32^level keys, all of them full, of which `keys` keys are; a 64-bit division is a call of its own.
CPR_BODY int64_t items_of(int64_t keys, int level) { return keys >> (kSumBits * level); }

CPR_BODY int64_t row_number(uint64_t key) { return static_cast<int64_t>(key >> 32); }

// The table of a row's number: the last that begins at or before it.
CPR_BODY int64_t table_of_row(const UpdateArgs& a, int64_t number) {
  int64_t low = 0;
  int64_t high = a.num_tables;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (a.tables[middle].first_row <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Adds the gradient that the id of `key` has, or begins the sum with it.
template <int kBlocks, int kWidth, typename T>
CPR_BODY void add_occurrence(const UpdateArgs& a, const TableView& t, uint64_t key, bool first, int lane,
                             int64_t column, Tile<T, kBlocks * kWidth>* sum) {
  const int64_t position = static_cast<int64_t>(key & kPositionMask);
  const int64_t bag = a.batch.bag_of == nullptr ? position : a.batch.bag_of[position];
  const int64_t feature =
      a.unpooled ? 0 : static_cast<uint32_t>(bag) / static_cast<uint32_t>(a.batch_size);  // both are below 2^31
  const int64_t at = (bag - feature * a.batch_size) * a.grad_stride + a.features[feature].column;
  Tile<T, kBlocks * kWidth> g{};
  read_tile<kWidth, kBlocks>(static_cast<const T*>(a.grad) + at, lane, column, t.dim, &g);
  if (t.pooling == Pooling::kMax) {
    each_block<kBlocks, kWidth>(lane, column, t.dim, [&](int from, int64_t item) {
      const Pack<uint32_t, kWidth> where = read_items<kWidth>(a.batch.argmax + at, item, t.dim);
      CPR_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        g.at[from + j] = where.at[j] == static_cast<uint32_t>(position) ? g.at[from + j] : T{0};
      }
    });
  } else if (a.batch.weights != nullptr || t.pooling == Pooling::kMean) {
    const T scale = a.batch.weights != nullptr ? static_cast<const T*>(a.batch.weights)[position]
                                               : T{1} / static_cast<T>(a.batch.bag_length[bag]);
    CPR_UNROLL
    for (int j = 0; j < kBlocks * kWidth; ++j) g.at[j] = g.at[j] * scale;
  }
  CPR_UNROLL
  for (int j = 0; j < kBlocks * kWidth; ++j) sum->at[j] = first ? g.at[j] : sum->at[j] + g.at[j];
}

template <int kBlocks, int kWidth, typename T>
CPR_BODY void add_tile(const Tile<T, kBlocks * kWidth>& x, bool first, Tile<T, kBlocks * kWidth>* sum) {
  CPR_UNROLL
  for (int j = 0; j < kBlocks * kWidth; ++j) sum->at[j] = first ? x.at[j] : sum->at[j] + x.at[j];
}

// Sum of the full chunk with place `place` of `level`.
template <int kBlocks, int kWidth, typename T>
CPR_BODY void add_chunk(const UpdateArgs& a, const TableView& t, int level, int64_t place, bool first, int lane,
                        int64_t column, Tile<T, kBlocks * kWidth>* sum) {
  const T* chunk = static_cast<const T*>(a.partial.sums) + (a.partial.begin[level] + place) * a.partial.stride;
  Tile<T, kBlocks * kWidth> x{};
  read_tile<kWidth, kBlocks>(chunk, lane, column, t.dim, &x);
  add_tile<kBlocks, kWidth>(x, first, sum);
}

// The ordered sum of `count` >= 1 keys from `start` on, those of one row. From the lowest level up: the items that are
// in no full chunk, then what was left of the level below, make up the level's open chunk.
template <int kBlocks, int kWidth, typename T>
CPR_BODY void sum_run(const UpdateArgs& a, const TableView& t, int64_t start, int64_t count, int lane, int64_t column,
                      Tile<T, kBlocks * kWidth>* sum) {
  bool left = false;  // `sum` has a chunk that isn't full, of the level below
  CPR_ROLLED
  for (int level = 0;; ++level) {
    const int64_t items = items_of(count, level);
    const int64_t chunks = items_of(items, 1);
    if (chunks > 0 && items == chunks * kSumFanout && !left) continue;
    Tile<T, kBlocks * kWidth> open{};
    CPR_ROLLED
    for (int64_t i = chunks * kSumFanout; i < items; ++i) {
      const bool first = i == chunks * kSumFanout;
      if (level == 0) {
        add_occurrence<kBlocks, kWidth>(a, t, a.keys[start + i], first, lane, column, &open);
      } else {
        add_chunk<kBlocks, kWidth>(a, t, level - 1, items_of(start, level) + i, first, lane, column, &open);
      }
    }
    if (left) add_tile<kBlocks, kWidth>(*sum, items == chunks * kSumFanout, &open);
    *sum = open;
    left = true;
    if (chunks == 0) return;
  }
}

// Whether any key of the run was sampled.
template <typename G>
CPR_BODY bool sampled_run(const G& g, const UpdateArgs& a, int64_t start, int64_t count) {
  typename G::template PerLane<bool> found;
  g.each([&](int lane) {
    for (int level = 0; items_of(count, level) > 0; ++level) {
      const int64_t items = items_of(count, level);
      for (int64_t i = items_of(items, 1) * kSumFanout + lane; i < items; i += G::kLanes) {
        found[lane] = found[lane] ||
                      (level == 0 ? (a.keys[start + i] & kSampledFlag) != 0
                                  : a.partial.sampled[a.partial.begin[level - 1] + items_of(start, level) + i] != 0);
      }
    }
  });
  return g.any(found);
}

// First key of the row's run; `at` is one of its keys.
CPR_BODY int64_t run_begin(const UpdateArgs& a, int64_t number, int64_t at) {
  int64_t low = 0;
  int64_t high = at;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row_number(a.keys[middle]) < number) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A bit for each key of the window from `begin` on that is the first of its row's.
CPR_BODY uint32_t run_heads(const UpdateArgs& a, int64_t begin) {
  int64_t before = begin == 0 ? -1 : row_number(a.keys[begin - 1]);
  uint32_t heads = 0;
  CPR_UNROLL
  for (int i = 0; i < kWindowKeys; ++i) {
    if (begin + i >= a.num_ids) continue;
    const int64_t number = row_number(a.keys[begin + i]);
    heads |= number != before ? 1U << i : 0U;
    before = number;
  }
  return heads;
}

// The end of the row's run that begins at `start` and has all keys before `at`, or all there are.
CPR_BODY int64_t run_end(const UpdateArgs& a, int64_t start, int64_t at) {
  const int64_t number = row_number(a.keys[start]);
  int64_t low = at;  // the keys before it are the row's
  int64_t step = 1;
  while (low + step <= a.num_ids && row_number(a.keys[low + step - 1]) == number) {
    low += step;
    step *= 2;
  }
  int64_t high = low + step - 1;  // this key isn't the row's, or there is none
  if (high >= a.num_ids) high = a.num_ids;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row_number(a.keys[middle]) == number) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < a.num_ids ? low : a.num_ids;
}

// Writes the sum of a full chunk of `level`, whose first key is `first`.
template <typename T, typename G>
CPR_BODY void write_chunk(const G& g, const UpdateArgs& a, const TableView& t, int level, int64_t first) {
  const int64_t place = a.partial.begin[level] + items_of(first, level + 1);
  T* out = static_cast<T*>(a.partial.sums) + place * a.partial.stride;
  typename G::template PerLane<bool> sampled;
  g.each([&](int lane) {
    for (int64_t column = 0; column < t.dim; column += kTileColumns) {
      Tile<T, kTileBlocks * G::kWidth> sum{};
      for (int64_t i = 0; i < kSumFanout; ++i) {
        if (level == 0) {
          add_occurrence<kTileBlocks, G::kWidth>(a, t, a.keys[first + i], i == 0, lane, column, &sum);
        } else {
          add_chunk<kTileBlocks, G::kWidth>(a, t, level - 1, items_of(first, level) + i, i == 0, lane, column, &sum);
        }
      }
      write_tile<G::kWidth, kTileBlocks>(sum, lane, column, t.dim, out);
    }
    for (int64_t i = lane; i < kSumFanout; i += G::kLanes) {
      sampled[lane] = sampled[lane] ||
                      (level == 0 ? (a.keys[first + i] & kSampledFlag) != 0
                                  : a.partial.sampled[a.partial.begin[level - 1] + items_of(first, level) + i] != 0);
    }
  });
  const bool any = g.any(sampled);
  g.each([&](int lane) {
    if (lane == 0) a.partial.sampled[place] = any ? 1 : 0;
  });
}

// Whether a chunk of `size` keys from `first` on is full of the row's.
CPR_BODY bool is_full(const UpdateArgs& a, int64_t number, int64_t first, int64_t size) {
  return first + size <= a.num_ids && row_number(a.keys[first + size - 1]) == number;
}

// The chunk that begins among the 32 keys of a window, if it is full; then, if it was the last of 32, the chunk of
// these, and so on: whoever comes last has all others' sums before it.
template <typename T, typename G>
CPR_BODY void sum_window(const G& g, const UpdateArgs& a, int64_t window) {
  const int64_t begin = window * kSumFanout;
  const int64_t last = begin + kSumFanout - 1;
  if (last >= a.num_ids) return;
  const int64_t number = row_number(a.keys[last]);
  const bool goes_on = last + 1 < a.num_ids && row_number(a.keys[last + 1]) == number;
  if (row_number(a.keys[begin]) != number && !goes_on) return;
  const int64_t start = run_begin(a, number, last);
  int64_t first = start >= begin ? start : start + (begin - start + kSumFanout - 1) / kSumFanout * kSumFanout;
  if (!is_full(a, number, first, kSumFanout)) return;
  const int64_t index = table_of_row(a, number);
  const TableRecord& table = a.tables[index];
  if (table.frozen != 0 || (a.only_table >= 0 && index != a.only_table)) return;
  for (int level = 0; level < a.partial.levels; ++level) {
    write_chunk<T>(g, a, table.view, level, first);
    const int64_t above = int64_t{1} << (kSumBits * (level + 2));  // keys of the chunk of 32 such
    first = start + ((first - start) & ~(above - 1));
    if (level + 1 == a.partial.levels || !is_full(a, number, first, above)) return;
    g.sync();
    typename G::template PerLane<uint32_t> before;
    uint32_t* arrived = a.batch.arrived + a.partial.counters[level] + items_of(first, level + 2);
    g.each([&](int lane) {
      if (lane == 0) before[lane] = add_acq_rel(arrived, 1);
    });
    if (g.from_first(before) != kSumFanout - 1) return;
    g.sync();
  }
}

// Beside it: whether the gradient is finite, and what Adam divides by in this step.
template <typename T, typename G>
CPR_BODY void partial_body(const G& g, const UpdateArgs& a) {
  if (a.state->failed != 0) return;
  const int64_t lanes = g.count() * G::kLanes;
  g.each([&](int lane) {
    bool bad = false;
    for (int64_t i = g.index() * G::kLanes + lane; i < a.grad_size; i += lanes) {
      bad = bad || (bits_of_float(static_cast<const float*>(a.grad)[i]) & 0x7f800000U) == 0x7f800000U;
    }
    if (bad) store_relaxed(&a.state->not_finite, 1);
    if (g.index() != 0 || lane != 0) return;
    const uint64_t t = static_cast<uint64_t>(a.state->step) + 1;
    a.state->correction1 = adam_correction(a.state->settings.wide_beta1, t);
    a.state->correction2 = adam_correction(a.state->settings.wide_beta2, t);
  });
  const int64_t windows = a.num_ids / kSumFanout;
  for (int64_t window = g.index(); window < windows; window += g.count()) sum_window<T>(g, a, window);
}
