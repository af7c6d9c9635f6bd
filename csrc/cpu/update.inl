// Part of kernels.cpp: the fused update of one unit: sort, sum, optimizer and trackers in one visit of each row.

inline constexpr int64_t kUpdateAhead = 12;  // keys

// How the gradient of an occurrence is made of its bag's.
enum class Occurrence { kPlain, kScaled, kLargest };

template <typename T>
CPR_INLINE const T* gradient_of(const UpdateArgs& a, uint64_t position, int64_t* bag_out) {
  const int64_t bag = a.bag_of != nullptr ? a.bag_of[position] : static_cast<int64_t>(position);
  const int64_t feature = a.only_feature >= 0 ? a.only_feature : bag / a.batch;
  *bag_out = bag;
  return static_cast<const T*>(a.grad) + (bag - feature * a.batch) * a.grad_stride + a.feature_column[feature];
}

template <typename T>
CPR_INLINE T occurrence_scale(const UpdateArgs& a, uint64_t position, int64_t bag) {
  if (a.per_sample_weights != nullptr) return static_cast<const T*>(a.per_sample_weights)[position];
  return T{1} / static_cast<T>(a.bag_length[bag]);
}

// Max pooling: the elements of the bag's gradient whose largest item this was.
template <typename T>
CPR_INLINE void add_largest(const UpdateArgs& a, uint64_t position, const T* g, bool first, T* sums) {
  const uint32_t* argmax = a.argmax + (g - static_cast<const T*>(a.grad));
  for (int64_t d = 0; d < a.table.dim; ++d) {
    const T mine = argmax[d] == static_cast<uint32_t>(position) ? g[d] : T{0};
    sums[d] = first ? mine : sums[d] + mine;
  }
}

// The ordered sum of the gradients of keys [0, count) of one row. Points into grad or into sums.
template <typename T, int D, Occurrence kKind>
CPR_INLINE const T* sum_gradients(const UpdateArgs& a, const uint64_t* keys, int64_t count, T* sums) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  int64_t bag = 0;
  if (kKind == Occurrence::kPlain && count == 1) return gradient_of<T>(a, keys[0] & kPositionMask, &bag);
  const bool tree = count > kSumFanout;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t position = keys[i] & kPositionMask;
    const T* g = gradient_of<T>(a, position, &bag);
    const bool first = tree ? i % kSumFanout == 0 : i == 0;
    if constexpr (kKind == Occurrence::kLargest) {
      add_largest(a, position, g, first, sums);
    } else if constexpr (kKind == Occurrence::kScaled) {
      const T scale = occurrence_scale<T>(a, position, bag);
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

#include "cpu/optimizers.inl"

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

// Settles the row and brings its word up to date; `word` was its word before and `next` is after.
CPR_INLINE void track(const TableView& t, int64_t row, int64_t count, bool sampled, TrackerDelta* delta, uint32_t* word,
                      uint32_t* next) {
  uint32_t* cell = &meta_of(t, row)->word;
  *word = settle(t, row, load_word(cell), delta);
  uint32_t now = *word;
  if (t.track_mfu) now = add_count(now, static_cast<uint64_t>(count));
  if (t.track_dirty) now |= kDirtyBit;
  now |= sampled ? kListedBit : 0;
  if (t.track_drift) now &= ~kVoidDriftBit;
  store_word(cell, now);
  *next = now;
}

CPR_INLINE void track_drift(const TableView& t, int64_t row, uint32_t word, float norm, float* before, float* after) {
  *before = drift_of(t, row, word);
  *after = add_drift(*before, norm);
  *drift_cell(t, row) = *after;
}

// What `account` does row by row, for a unit at once and in lanes: in the loop over rows it would cost three times as
// much.
static void account_unit(const TableView& t, Workspace* w, int64_t n, TrackerDelta* delta) noexcept {
  uint32_t* before = w->before.data();
  uint32_t* after = w->after.data();
  int64_t dirty = 0;
  for (int64_t i = 0; i < n; ++i) dirty += static_cast<int64_t>((after[i] & kDirtyBit) != (before[i] & kDirtyBit));
  delta->dirty += dirty;
  if (t.track_mfu) {
    for (int64_t i = 0; i < n; ++i) {
      before[i] = static_cast<uint32_t>(count_bucket(before[i] & kCountMask));
      after[i] = static_cast<uint32_t>(count_bucket(after[i] & kCountMask));
    }
    for (int64_t i = 0; i < n; ++i) {
      --delta->counts[before[i]];
      ++delta->counts[after[i]];
    }
  }
  if (t.track_drift) {
    const float* drift_before = w->drift_before.data();
    const float* drift_after = w->drift_after.data();
    for (int64_t i = 0; i < n; ++i) {
      before[i] = static_cast<uint32_t>(drift_bucket(drift_before[i]));
      after[i] = static_cast<uint32_t>(drift_bucket(drift_after[i]));
    }
    for (int64_t i = 0; i < n; ++i) {
      --delta->drifts[before[i]];
      ++delta->drifts[after[i]];
    }
  }
}

template <typename T, int D>
CPR_INLINE void prefetch_update(const UpdateArgs& a, uint64_t key) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  const int64_t row = static_cast<int64_t>(key >> 32);
  __builtin_prefetch(meta_of(a.table, row), 1);
  int64_t bag = 0;
  const char* g = reinterpret_cast<const char*>(gradient_of<T>(a, key & kPositionMask, &bag));
  for (int64_t byte = 0; byte < dim * static_cast<int64_t>(sizeof(T)); byte += 64) __builtin_prefetch(g + byte);
  const int64_t bytes = D > 0 ? dim * static_cast<int64_t>(sizeof(float)) : weight_bytes(a.table.format);
  const char* w = static_cast<const char*>(a.table.weight) + row * bytes;
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(w + byte, 1);
  if constexpr (D == 0) {
    for (int array = 0; array < a.table.num_arrays; ++array) {
      const StateArray& state = a.table.arrays[array];
      const char* s = reinterpret_cast<const char*>(state.data + row * state.columns);
      for (int64_t byte = 0; byte < state.columns * 4; byte += 64) __builtin_prefetch(s + byte, 1);
    }
  }
}

// The row's gradient, with what multiplies it; points into grad or into sums.
template <typename T, int D, Occurrence kKind>
CPR_INLINE const T* row_gradient(const UpdateArgs& a, const uint64_t* keys, int64_t count, T* sums) {
  const T* g = sum_gradients<T, D, kKind>(a, keys, count, sums);
  T scale = static_cast<T>(a.grad_scale);
  if (a.scale_grad_by_freq) scale /= static_cast<T>(count);
  if (scale == T{1}) return g;
  copy_scaled<D>(sums, g, scale, fixed_dim<D>(a.table.dim));
  return sums;
}

template <typename T, int D, Optimizer kOptimizer, Occurrence kKind>
static int64_t update_rows(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                           TrackerDelta* delta) noexcept {
  T* sums = reinterpret_cast<T*>(w->sums.data());
  uint32_t* sampled_rows = w->sampled.data();
  const int64_t dim = fixed_dim<D>(a.table.dim);
  int64_t unique = 0;
  int64_t num_sampled = 0;
  int64_t ahead = 0;
  for (int64_t i = 0; i < n;) {
    for (; ahead < n && ahead <= i + kUpdateAhead; ++ahead) prefetch_update<T, D>(a, keys[ahead]);
    const int64_t row = static_cast<int64_t>(keys[i] >> 32);
    bool sampled = false;
    const int64_t end = run_end(keys, i, n, &sampled);
    uint32_t* word = w->before.data() + unique;
    track(a.table, row, end - i, sampled, delta, word, w->after.data() + unique);
    if constexpr (kOptimizer == Optimizer::kNone) {
      a.out_rows[unique] = row;
      if (a.out_grad != nullptr) {
        const T* g = row_gradient<T, D, kKind>(a, keys + i, end - i, sums);
        copy_row<D>(static_cast<T*>(a.out_grad) + unique * dim, g, dim);
      }
    } else {
      const T* g = row_gradient<T, D, kKind>(a, keys + i, end - i, sums);
      const float norm = optimise_row<D, kOptimizer>(a, row, g, sums + kSumLevels * dim);
      if (a.table.track_drift) {
        track_drift(a.table, row, *word, norm, w->drift_before.data() + unique, w->drift_after.data() + unique);
      }
    }
    sampled_rows[num_sampled] = static_cast<uint32_t>(row);
    num_sampled += sampled ? 1 : 0;
    ++unique;
    i = end;
  }
  w->num_sampled = num_sampled;
  account_unit(a.table, w, unique, delta);
  return unique;
}

template <typename T, int D, Optimizer kOptimizer>
static int64_t update_as(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                         TrackerDelta* delta) noexcept {
  if (a.argmax != nullptr) return update_rows<T, 0, kOptimizer, Occurrence::kLargest>(a, keys, n, w, delta);
  return a.per_sample_weights != nullptr || a.bag_length != nullptr
             ? update_rows<T, D, kOptimizer, Occurrence::kScaled>(a, keys, n, w, delta)
             : update_rows<T, D, kOptimizer, Occurrence::kPlain>(a, keys, n, w, delta);
}

template <int D>
static int64_t update_floats(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                             TrackerDelta* delta) noexcept {
  switch (a.optimizer) {
    case Optimizer::kSgd:
      return update_as<float, D, Optimizer::kSgd>(a, keys, n, w, delta);
    case Optimizer::kRowWiseAdagrad:
      return update_as<float, D, Optimizer::kRowWiseAdagrad>(a, keys, n, w, delta);
    case Optimizer::kAdagrad:
      return update_as<float, 0, Optimizer::kAdagrad>(a, keys, n, w, delta);
    case Optimizer::kAdam:
      return update_as<float, 0, Optimizer::kAdam>(a, keys, n, w, delta);
    case Optimizer::kPartialRowWiseAdam:
      return update_as<float, 0, Optimizer::kPartialRowWiseAdam>(a, keys, n, w, delta);
    default:
      return update_as<float, D, Optimizer::kNone>(a, keys, n, w, delta);
  }
}

static int64_t update(const UpdateArgs& a, const KeySpan* spans, int num_spans, Workspace* w,
                      TrackerDelta* delta) noexcept {
  int64_t n = 0;
  for (int s = 0; s < num_spans; ++s) n += spans[s].size;
  w->num_sampled = 0;
  if (n == 0) return 0;
  const uint64_t* keys = sort_keys(spans, num_spans, n, a.table.num_rows, w->keys_a.data(), w->keys_b.data());
  const DType dtype = a.table.format.dtype;
  if (dtype == DType::kFloat64) return update_as<double, 0, Optimizer::kNone>(a, keys, n, w, delta);
  switch (dtype == DType::kFloat32 ? a.table.dim : 0) {
    case 8:
      return update_floats<8>(a, keys, n, w, delta);
    case 16:
      return update_floats<16>(a, keys, n, w, delta);
    case 32:
      return update_floats<32>(a, keys, n, w, delta);
    case 64:
      return update_floats<64>(a, keys, n, w, delta);
    case 128:
      return update_floats<128>(a, keys, n, w, delta);
    default:
      return update_floats<0>(a, keys, n, w, delta);
  }
}

template <typename T>
static void weight_grad_as(const UpdateArgs& a, const KeySpan& span, T* scratch, T* out) noexcept {
  for (int64_t i = 0; i < span.size; ++i) {
    const uint64_t position = span.keys[i] & kPositionMask;
    int64_t bag = 0;
    const T* g = gradient_of<T>(a, position, &bag);
    const T* w = row_of<T, 0>(a.table, span.keys[i], scratch);
    T lane[32] = {};
    for (int64_t d = 0; d < a.table.dim; ++d) lane[d % 32] += g[d] * w[d];
    for (int width = 16; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] = lane[2 * j] + lane[2 * j + 1];
    }
    out[position] = lane[0];
  }
}

static void weight_grad(const UpdateArgs& a, const KeySpan& span, void* scratch, void* out) noexcept {
  if (a.table.format.dtype == DType::kFloat64) {
    weight_grad_as(a, span, static_cast<double*>(scratch), static_cast<double*>(out));
  } else {
    weight_grad_as(a, span, static_cast<float*>(scratch), static_cast<float*>(out));
  }
}
