// Part of kernels.cpp: the fused update of one unit: sort, sum, optimizer and trackers in one visit of each row.

inline constexpr int64_t kUpdateAhead = 12;  // keys

CPR_INLINE const float* gradient_of(const UpdateArgs& a, uint64_t position, int64_t* bag_out) {
  const int64_t bag = a.bag_of != nullptr ? a.bag_of[position] : static_cast<int64_t>(position);
  const int64_t feature = a.only_feature >= 0 ? a.only_feature : bag / a.batch;
  *bag_out = bag;
  return a.grad + (bag - feature * a.batch) * a.grad_stride + a.feature_column[feature];
}

CPR_INLINE float occurrence_scale(const UpdateArgs& a, uint64_t position, int64_t bag) {
  if (a.per_sample_weights != nullptr) return a.per_sample_weights[position];
  return a.inverse_length[bag];
}

// The ordered sum of the gradients of keys [0, count) of one row. Points into grad or into sums.
template <int D, bool kScaled>
CPR_INLINE const float* sum_gradients(const UpdateArgs& a, const uint64_t* keys, int64_t count, float* sums) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  int64_t bag = 0;
  if (!kScaled && count == 1) return gradient_of(a, keys[0] & kPositionMask, &bag);
  const bool tree = count > kSumFanout;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t position = keys[i] & kPositionMask;
    const float* g = gradient_of(a, position, &bag);
    const bool first = tree ? i % kSumFanout == 0 : i == 0;
    if (kScaled) {
      const float scale = occurrence_scale(a, position, bag);
      if (first) {
        copy_scaled<D>(sums, g, scale, dim);
      } else {
        add_scaled<D>(sums, g, scale, dim);
      }
    } else if (first) {
      copy_row<D>(sums, g, dim);
    } else {
      add_row<D>(sums, g, dim);
    }
    if (tree) carry_sums<D>(sums, static_cast<uint64_t>(i) + 1, dim);
  }
  return tree ? finish_sums<D>(sums, static_cast<uint64_t>(count), dim) : sums;
}

// Row-wise Adagrad (FBGEMM's EXACT_ROWWISE_ADAGRAD): state += mean(g^2); w -= lr / (sqrt(state) + eps) * g.
template <int D, Optimizer kOptimizer>
CPR_INLINE void apply_optimizer(const UpdateArgs& a, int64_t row, const float* g) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  float* w = a.table.weight + row * dim;
  float rate = a.learning_rate;
  if constexpr (kOptimizer == Optimizer::kRowWiseAdagrad) {
    RowMeta* meta = a.table.meta + row;
    const float state = meta->state + sum_of_squares<D>(g, dim) / static_cast<float>(dim);
    meta->state = state;
    rate = a.learning_rate / (__builtin_sqrtf(state) + a.eps);
  }
  subtract_scaled<D>(w, g, rate, dim);
}

// End of the run of equal rows that begins at keys[i], and whether any of its positions was sampled: one loop for both,
// since the length of a run is hard to predict.
CPR_INLINE int64_t run_end(const uint64_t* keys, int64_t i, int64_t n, bool* sampled) {
  const uint64_t row = keys[i] >> 32;
  uint64_t any = keys[i];
  int64_t end = i + 1;
  for (; end < n && (keys[end] >> 32) == row; ++end) any |= keys[end];
  *sampled = (any & kSampledFlag) != 0;
  return end;
}

CPR_INLINE void track(const TableView& t, int64_t row, int64_t count, bool sampled, uint32_t* before, uint32_t* after,
                      TrackerDelta* delta) {
  uint32_t* cell = &t.meta[row].word;
  const uint32_t word = settle(t, row, load_word(cell), delta);
  uint32_t next = word;
  if (t.track_mfu) next = add_count(next, static_cast<uint64_t>(count));
  if (t.track_dirty) next |= kDirtyBit;
  next |= sampled ? kListedBit : 0;
  store_word(cell, next);
  *before = word;
  *after = next;
}

// What `account` does row by row, for a unit at once and in lanes: in the loop over rows it would cost three times as
// much.
static void account_unit(const TableView& t, uint32_t* before, uint32_t* after, int64_t n,
                         TrackerDelta* delta) noexcept {
  int64_t dirty = 0;
  for (int64_t i = 0; i < n; ++i) dirty += static_cast<int64_t>((after[i] & kDirtyBit) != (before[i] & kDirtyBit));
  delta->dirty += dirty;
  if (!t.track_mfu) return;
  for (int64_t i = 0; i < n; ++i) {
    before[i] = static_cast<uint32_t>(count_bucket(before[i] & kCountMask));
    after[i] = static_cast<uint32_t>(count_bucket(after[i] & kCountMask));
  }
  for (int64_t i = 0; i < n; ++i) {
    ++delta->left[before[i]];
    ++delta->entered[after[i]];
  }
}

template <int D>
CPR_INLINE void prefetch_update(const UpdateArgs& a, uint64_t key) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  const int64_t row = static_cast<int64_t>(key >> 32);
  __builtin_prefetch(a.table.meta + row, 1);
  const char* w = reinterpret_cast<const char*>(a.table.weight + row * dim);
  int64_t bag = 0;
  const char* g = reinterpret_cast<const char*>(gradient_of(a, key & kPositionMask, &bag));
  for (int64_t byte = 0; byte < dim * 4; byte += 64) {
    __builtin_prefetch(w + byte, 1);
    __builtin_prefetch(g + byte);
  }
}

template <int D, Optimizer kOptimizer, bool kScaled>
static int64_t update_rows(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                           TrackerDelta* delta) noexcept {
  float* sums = w->sums.data();
  uint32_t* before = w->before.data();
  uint32_t* after = w->after.data();
  uint32_t* sampled_rows = w->sampled.data();
  const int64_t dim = fixed_dim<D>(a.table.dim);
  int64_t unique = 0;
  int64_t num_sampled = 0;
  int64_t ahead = 0;
  for (int64_t i = 0; i < n;) {
    for (; ahead < n && ahead <= i + kUpdateAhead; ++ahead) prefetch_update<D>(a, keys[ahead]);
    const uint64_t row = keys[i] >> 32;
    bool sampled = false;
    const int64_t end = run_end(keys, i, n, &sampled);
    const float* g = sum_gradients<D, kScaled>(a, keys + i, end - i, sums);
    if (a.grad_scale != 1.0F) {
      copy_scaled<D>(sums, g, a.grad_scale, dim);
      g = sums;
    }
    track(a.table, static_cast<int64_t>(row), end - i, sampled, before + unique, after + unique, delta);
    if constexpr (kOptimizer == Optimizer::kNone) {
      a.out_rows[unique] = static_cast<int64_t>(row);
      copy_row<D>(a.out_grad + unique * dim, g, dim);
    } else {
      apply_optimizer<D, kOptimizer>(a, static_cast<int64_t>(row), g);
    }
    sampled_rows[num_sampled] = static_cast<uint32_t>(row);
    num_sampled += sampled ? 1 : 0;
    ++unique;
    i = end;
  }
  w->num_sampled = num_sampled;
  account_unit(a.table, before, after, unique, delta);
  return unique;
}

template <int D, Optimizer kOptimizer>
static int64_t update_scaled(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                             TrackerDelta* delta) noexcept {
  const bool scaled = a.per_sample_weights != nullptr || a.inverse_length != nullptr;
  return scaled ? update_rows<D, kOptimizer, true>(a, keys, n, w, delta)
                : update_rows<D, kOptimizer, false>(a, keys, n, w, delta);
}

template <int D>
static int64_t update_optimizer(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                                TrackerDelta* delta) noexcept {
  switch (a.optimizer) {
    case Optimizer::kSgd:
      return update_scaled<D, Optimizer::kSgd>(a, keys, n, w, delta);
    case Optimizer::kRowWiseAdagrad:
      return update_scaled<D, Optimizer::kRowWiseAdagrad>(a, keys, n, w, delta);
    default:
      return update_scaled<D, Optimizer::kNone>(a, keys, n, w, delta);
  }
}

static int64_t update(const UpdateArgs& a, const KeySpan* spans, int num_spans, Workspace* w,
                      TrackerDelta* delta) noexcept {
  int64_t n = 0;
  for (int s = 0; s < num_spans; ++s) n += spans[s].size;
  w->num_sampled = 0;
  if (n == 0) return 0;
  const uint64_t* keys = sort_keys(spans, num_spans, n, a.table.num_rows, w->keys_a.data(), w->keys_b.data());
  switch (a.table.dim) {
    case 8:
      return update_optimizer<8>(a, keys, n, w, delta);
    case 16:
      return update_optimizer<16>(a, keys, n, w, delta);
    case 32:
      return update_optimizer<32>(a, keys, n, w, delta);
    case 64:
      return update_optimizer<64>(a, keys, n, w, delta);
    case 128:
      return update_optimizer<128>(a, keys, n, w, delta);
    default:
      return update_optimizer<0>(a, keys, n, w, delta);
  }
}

static void weight_grad(const UpdateArgs& a, const KeySpan& span, float* out) noexcept {
  for (int64_t i = 0; i < span.size; ++i) {
    const uint64_t position = span.keys[i] & kPositionMask;
    int64_t bag = 0;
    const float* g = gradient_of(a, position, &bag);
    const float* w = a.table.weight + static_cast<int64_t>(span.keys[i] >> 32) * a.table.dim;
    float lane[32] = {};
    for (int64_t d = 0; d < a.table.dim; ++d) lane[d % 32] += g[d] * w[d];
    for (int width = 16; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] = lane[2 * j] + lane[2 * j + 1];
    }
    out[position] = lane[0];
  }
}
