// Part of kernels: the update of a unique row, by one group: sum, optimizer and trackers in one visit. The formulas are
// those of core/steps.hpp.

// A row that is being updated.
struct RowWork {
  int64_t row = 0;    // of its table
  int64_t start = 0;  // its keys
  int64_t count = 0;
  float scale = 1.0F;    // of the gradient
  uint64_t row_key = 0;  // rounds half precision
};

template <typename G>
using RowTile = TileOf<G, float>;

// The gradient that the optimizer gets, columns of it from `column` on.
template <typename G>
CPR_BODY void read_gradient(const UpdateArgs& a, const TableView& t, const RowWork& work, int lane, int64_t column,
                            Tile<float, kTileBlocks * G::kWidth>* g) {
  constexpr int kNumbers = kTileBlocks * G::kWidth;
  sum_run<kTileBlocks, G::kWidth>(a, t, work.start, work.count, lane, column, g);
  if (work.scale != 1.0F) {
    CPR_UNROLL
    for (int j = 0; j < kNumbers; ++j) g->at[j] = g->at[j] * work.scale;
  }
  const float decay = a.state->settings.weight_decay;
  if (decay != 0.0F) {
    Tile<float, kNumbers> w{};
    read_row<G::kWidth, kTileBlocks>(t, work.row, lane, column, &w);
    CPR_UNROLL
    for (int j = 0; j < kNumbers; ++j) g->at[j] = g->at[j] + w.at[j] * decay;
  }
}

// Squares of a lane's columns, by place in a block: each in the order of the blocks.
template <int kWidth>
struct Squares {
  Tile<float, kWidth> sums{};

  template <int kBlocks>
  CPR_MEMBER void add(const Tile<float, kBlocks * kWidth>& x) {
    CPR_UNROLL
    for (int j = 0; j < kBlocks * kWidth; ++j) sums.at[j % kWidth] = sums.at[j % kWidth] + x.at[j] * x.at[j];
  }
};

template <typename G>
CPR_BODY float sum_of_squares(const G& g, const typename G::template PerLane<Squares<G::kWidth>>& squares) {
  typename G::template PerLane<float> totals;
  g.each([&](int lane) { totals[lane] = sum_pairs(squares[lane].sums); });
  return g.sum(totals);
}

// What is subtracted from the columns of a tile; state arrays are brought up to date. `rate`: of row-wise Adagrad, or
// the denominator of partial row-wise Adam.
template <Optimizer kOptimizer, typename G>
CPR_BODY void make_step(const UpdateArgs& a, const TableView& t, int64_t row, float rate, int lane, int64_t column,
                        const Tile<float, kTileBlocks * G::kWidth>& g, Tile<float, kTileBlocks * G::kWidth>* step) {
  constexpr int kNumbers = kTileBlocks * G::kWidth;
  constexpr int kWidth = G::kWidth;
  const Settings& s = a.state->settings;
  if constexpr (kOptimizer == Optimizer::kSgd || kOptimizer == Optimizer::kRowWiseAdagrad) {
    const float scale = kOptimizer == Optimizer::kSgd ? s.learning_rate : rate;
    CPR_UNROLL
    for (int j = 0; j < kNumbers; ++j) step->at[j] = g.at[j] * scale;
  } else {
    float* first = t.arrays[0].data + row * t.dim;
    Tile<float, kNumbers> m{};
    read_tile<kWidth, kTileBlocks>(first, lane, column, t.dim, &m);
    if constexpr (kOptimizer == Optimizer::kAdagrad) {
      CPR_UNROLL
      for (int j = 0; j < kNumbers; ++j) {
        m.at[j] = adagrad_sum(m.at[j], g.at[j]);
        step->at[j] = adagrad_step(s.learning_rate, g.at[j], m.at[j], s.eps);
      }
    } else {
      Tile<float, kNumbers> v{};
      float* second = t.arrays[1].data + row * t.dim;
      if constexpr (kOptimizer == Optimizer::kAdam) read_tile<kWidth, kTileBlocks>(second, lane, column, t.dim, &v);
      CPR_UNROLL
      for (int j = 0; j < kNumbers; ++j) {
        m.at[j] = moved_moment(s.beta1, s.gain1, m.at[j], g.at[j]);
        float denominator = rate;
        if constexpr (kOptimizer == Optimizer::kAdam) {
          v.at[j] = moved_moment(s.beta2, s.gain2, v.at[j], g.at[j] * g.at[j]);
          denominator = adam_denominator(v.at[j], a.state->correction2, s.eps);
        }
        step->at[j] = adam_step(s.learning_rate, m.at[j], a.state->correction1, denominator);
      }
      if constexpr (kOptimizer == Optimizer::kAdam) write_tile<kWidth, kTileBlocks>(v, lane, column, t.dim, second);
    }
    write_tile<kWidth, kTileBlocks>(m, lane, column, t.dim, first);
  }
}

// Optimizers with one number a row need the sum of squares of the whole gradient first. Returns what make_step wants.
template <Optimizer kOptimizer, typename G>
CPR_BODY float bring_state(const UpdateArgs& a, const TableView& t, float squares, float* state) {
  const Settings& s = a.state->settings;
  const float mean = squares / static_cast<float>(t.dim);
  if constexpr (kOptimizer == Optimizer::kRowWiseAdagrad) {
    *state = *state + mean;
    return row_wise_rate(s.learning_rate, *state, s.eps);
  } else {
    *state = moved_moment(s.beta2, s.gain2, *state, mean);
    return adam_denominator(*state, a.state->correction2, s.eps);
  }
}

template <Optimizer kOptimizer>
inline constexpr bool kHasRowState =
    kOptimizer == Optimizer::kRowWiseAdagrad || kOptimizer == Optimizer::kPartialRowWiseAdam;

// Columns that the row doesn't have count as 0: without eps their step would be NaN.
template <typename G>
CPR_BODY void keep_columns(int lane, int64_t column, int64_t dim, Tile<float, kTileBlocks * G::kWidth>* step) {
  CPR_UNROLL
  for (int j = 0; j < kTileBlocks * G::kWidth; ++j) {
    const int64_t at = column + j / G::kWidth * kBlockColumns + lane * G::kWidth + j % G::kWidth;
    if (at >= dim) step->at[j] = 0.0F;
  }
}

// Sum, optimizer and write of a row; returns the norm of the step where the drift is tracked. `state`: of the row.
template <Optimizer kOptimizer, typename G>
CPR_BODY float optimise_row(const G& g, const UpdateArgs& a, const TableView& t, const RowWork& work, float* state) {
  constexpr int kNumbers = kTileBlocks * G::kWidth;
  typename G::template PerLane<Squares<G::kWidth>> squares;
  RowTile<G> gradient;
  const bool one_tile = t.dim <= kTileColumns;
  float norm_scale = 1.0F;
  float rate = 0.0F;
  if constexpr (kHasRowState<kOptimizer>) {
    for (int64_t column = 0; column < t.dim; column += kTileColumns) {
      g.each([&](int lane) {
        gradient[lane] = {};
        read_gradient<G>(a, t, work, lane, column, &gradient[lane]);
        squares[lane].template add<kTileBlocks>(gradient[lane]);
      });
    }
    const float sum = sum_of_squares(g, squares);
    rate = bring_state<kOptimizer, G>(a, t, sum, state);
    if (kOptimizer == Optimizer::kRowWiseAdagrad) norm_scale = rate * square_root(sum);
    squares = {};
  }
  for (int64_t column = 0; column < t.dim; column += kTileColumns) {
    g.each([&](int lane) {
      if (!kHasRowState<kOptimizer> || !one_tile) {
        gradient[lane] = {};
        read_gradient<G>(a, t, work, lane, column, &gradient[lane]);
      }
      Tile<float, kNumbers> step{};
      make_step<kOptimizer, G>(a, t, work.row, rate, lane, column, gradient[lane], &step);
      Tile<float, kNumbers> weight{};
      read_row<G::kWidth, kTileBlocks>(t, work.row, lane, column, &weight);
      CPR_UNROLL
      for (int j = 0; j < kNumbers; ++j) weight.at[j] = weight.at[j] - step.at[j];
      write_row<G::kWidth, kTileBlocks>(t, work.row, work.row_key, lane, column, weight);
      if (t.track_drift && kOptimizer != Optimizer::kRowWiseAdagrad) {
        if (kOptimizer != Optimizer::kSgd) keep_columns<G>(lane, column, t.dim, &step);
        squares[lane].template add<kTileBlocks>(kOptimizer == Optimizer::kSgd ? gradient[lane] : step);
      }
    });
  }
  if (!t.track_drift || kOptimizer == Optimizer::kRowWiseAdagrad) return norm_scale;
  const float scale = kOptimizer == Optimizer::kSgd ? a.state->settings.learning_rate : 1.0F;
  return scale * square_root(sum_of_squares(g, squares));
}

// The row's word after an update, from the settled one before.
CPR_BODY uint32_t tracked_word(const TableView& t, uint32_t word, int64_t count, bool sampled) {
  uint32_t next = with_parity(t, word);
  if (t.track_mfu) next = add_count(next, static_cast<uint64_t>(count));
  if (t.track_dirty) next |= kDirtyBit;
  if (sampled) next |= kListedBit;
  if (t.track_drift) next &= ~kVoidDriftBit;
  return next;
}

// A sampled row claims its slot: the largest of the step gets it.
CPR_BODY void claim_slot(const TableRecord& table, int64_t row) {
  const SsuView& ssu = table.view.ssu;
  max_relaxed(table.claims + ssu_slot(ssu, ssu_hash(ssu, static_cast<uint64_t>(row))), static_cast<uint32_t>(row) + 1);
}

// The row whose keys are [start, end). Returns whether it was sampled, and may claim a slot.
template <Optimizer kOptimizer, typename G>
CPR_BODY bool update_row(const G& g, const UpdateArgs& a, int64_t start, int64_t end) {
  const int64_t number = row_number(a.keys[start]);
  const int64_t index = table_of_row(a, number);
  const TableRecord& table = a.tables[index];
  if (table.frozen != 0) return false;
  const TableView& t = table.view;
  RowWork work{number - table.first_row, start, end - start, a.grad_scale, 0};
  if (table.scale_by_freq != 0) work.scale = work.scale / static_cast<float>(work.count);
  if (t.format.dtype != DType::kFloat32) {
    const uint64_t step_key = rounding_key(table.key, static_cast<uint64_t>(a.state->step));
    work.row_key = hash2(step_key, static_cast<uint64_t>(work.row + t.row_offset));
  }
  const bool sampled = sampled_run(g, a, start, work.count);
  typename G::template PerLane<float> held;
  typename G::template PerLane<uint32_t> words;
  g.each([&](int lane) {
    if (lane != 0) return;
    held[lane] = meta_of(t, work.row)->state;
    words[lane] = meta_of(t, work.row)->word;
  });
  float state = g.from_first(held);
  const uint32_t word = settle_on_stream(g, t, static_cast<uint32_t>(index), a.touched, work.row, g.from_first(words));
  const float norm = optimise_row<kOptimizer>(g, a, t, work, &state);
  g.each([&](int lane) {
    if (lane != 0) return;
    RowMeta* meta = meta_of(t, work.row);
    if (t.track_drift) *drift_cell(t, work.row) = add_drift(drift_of(t, work.row, word), norm);
    *meta = {state, tracked_word(t, word, work.count, sampled)};
    if (sampled) claim_slot(table, work.row);
  });
  return sampled;
}

// Rows whose keys begin in a window, one after the other; that they are found first keeps the groups of a warp
// together.
template <Optimizer kOptimizer, typename G>
CPR_BODY void update_window(const G& g, const UpdateArgs& a, int64_t window) {
  const int64_t begin = window * kWindowKeys;
  uint32_t heads = run_heads(a, begin);
  uint32_t sampled = 0;
  int first = 0;
  while (heads >> first != 0) {
    while ((heads >> first & 1) == 0) ++first;
    int next = first + 1;
    while (next < kWindowKeys && (heads >> next & 1) == 0) ++next;
    const int64_t end = next < kWindowKeys ? begin + next : run_end(a, begin + first, begin + kWindowKeys);
    if (update_row<kOptimizer>(g, a, begin + first, end)) sampled |= 1U << first;
    first = next;
  }
  g.each([&](int lane) {
    for (int i = lane; i < kWindowKeys; i += G::kLanes) a.sampled[begin + i] = static_cast<uint8_t>(sampled >> i & 1);
  });
}

template <Optimizer kOptimizer, typename G>
CPR_BODY void update_body(const G& g, const UpdateArgs& a) {
  if (a.state->failed != 0 || a.state->not_finite != 0) return;
  for (int64_t window = a.begin_window + g.index(); window < a.end_window; window += g.count()) {
    update_window<kOptimizer>(g, a, window);
  }
}
