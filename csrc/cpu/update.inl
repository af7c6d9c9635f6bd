// Part of kernels.cpp: the fused update of one unit: sort, sum, optimizer and trackers in one visit of each row.

inline constexpr int64_t kUpdateAhead = 12;     // rows
inline constexpr int64_t kGradientsAhead = 16;  // keys

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

template <typename T, int D>
CPR_INLINE void prefetch_gradient(const UpdateArgs& a, uint64_t key) {
  int64_t bag = 0;
  const char* g = reinterpret_cast<const char*>(gradient_of<T>(a, key & kPositionMask, &bag));
  const int64_t bytes = fixed_dim<D>(a.table.dim) * static_cast<int64_t>(sizeof(T));
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(g + byte);
}

// The ordered sum of the gradients of keys [0, count) of one row; `left` >= count keys follow. Points into grad or into
// sums.
template <typename T, int D, Occurrence kKind>
CPR_INLINE const T* sum_gradients(const UpdateArgs& a, const uint64_t* keys, int64_t count, int64_t left, T* sums) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  int64_t bag = 0;
  if (kKind == Occurrence::kPlain && count == 1) {
    prefetch_gradient<T, D>(a, keys[kGradientsAhead < left ? kGradientsAhead : left - 1]);
    return gradient_of<T>(a, keys[0] & kPositionMask, &bag);
  }
  const bool tree = count > kSumFanout;
  for (int64_t i = 0; i < count; ++i) {
    prefetch_gradient<T, D>(a, keys[i + kGradientsAhead < left ? i + kGradientsAhead : left - 1]);
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

// Where runs of equal rows begin, and one past the last; `sampled`: whether any position of the run was. Without
// branches: the lengths of runs are hard to predict. Returns the number of runs.
static int64_t find_runs(const uint64_t* keys, int64_t n, uint32_t* starts, uint32_t* sampled) noexcept {
  int64_t runs = -1;
  uint64_t row = ~uint64_t{0};
  uint32_t any = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t next = keys[i] >> 32;
    const bool begins = next != row;
    row = next;
    runs += begins ? 1 : 0;
    any = (begins ? 0 : any) | static_cast<uint32_t>(keys[i]);
    starts[runs] = begins ? static_cast<uint32_t>(i) : starts[runs];
    sampled[runs] = any >> 31;
  }
  starts[runs + 1] = static_cast<uint32_t>(n);
  return runs + 1;
}

// Settles the row and brings its word up to date; `word` was its word before and `next` is after. `drifts`: the caller
// then writes the drift.
CPR_INLINE void track(const TableView& t, int64_t row, int64_t count, bool sampled, bool drifts, TrackerDelta* delta,
                      uint32_t* word, uint32_t* next) {
  uint32_t* cell = &meta_of(t, row)->word;
  *word = settle(t, row, load_word(cell), delta);
  uint32_t now = with_parity(t, *word);
  if (t.track_mfu) now = add_count(now, static_cast<uint64_t>(count));
  if (t.track_dirty) now |= kDirtyBit;
  now |= sampled ? kListedBit : 0;
  if (drifts) now &= ~kVoidDriftBit;
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
static void account_unit(const TableView& t, bool drifts, Workspace* w, int64_t n, TrackerDelta* delta) noexcept {
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
  if (drifts) {
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

template <int D>
CPR_INLINE void prefetch_to_write(const TableView& t, int64_t row) {
  __builtin_prefetch(meta_of(t, row), 1);
  const int64_t bytes = D > 0 ? D * static_cast<int64_t>(sizeof(float)) : weight_bytes(t.format);
  const char* w = static_cast<const char*>(t.weight) + row * bytes;
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(w + byte, 1);
  if constexpr (D == 0) {
    for (int array = 0; array < t.num_arrays; ++array) {
      const StateArray& state = t.arrays[array];
      const char* s = reinterpret_cast<const char*>(state.data + row * state.columns);
      for (int64_t byte = 0; byte < state.columns * 4; byte += 64) __builtin_prefetch(s + byte, 1);
    }
  }
}

// Of a row whose `count` keys these are.
CPR_INLINE int64_t accesses_of(const UpdateArgs& a, const uint64_t* keys, int64_t count) {
  if (a.multiplicity == nullptr) return count;
  int64_t accesses = 0;
  for (int64_t i = 0; i < count; ++i) accesses += a.multiplicity[keys[i] & kPositionMask];
  return accesses;
}

// The row's gradient, with what multiplies it; points into grad or into sums.
template <typename T, int D, Occurrence kKind>
CPR_INLINE const T* row_gradient(const UpdateArgs& a, const uint64_t* keys, int64_t count, int64_t left,
                                 int64_t accesses, T* sums) {
  const T* g = sum_gradients<T, D, kKind>(a, keys, count, left, sums);
  T scale = static_cast<T>(a.grad_scale);
  if (a.scale_grad_by_freq) scale /= static_cast<T>(accesses);
  if (scale == T{1}) return g;
  copy_scaled<D>(sums, g, scale, fixed_dim<D>(a.table.dim));
  return sums;
}

template <typename T, int D, Optimizer kOptimizer, Occurrence kKind>
static int64_t update_rows(const UpdateArgs& a, const uint64_t* keys, int64_t n, Workspace* w,
                           TrackerDelta* delta) noexcept {
  T* sums = reinterpret_cast<T*>(w->sums.data());
  const uint32_t* starts = w->starts.data();
  uint32_t* before = w->before.data();
  uint32_t* after = w->after.data();
  uint32_t* sampled_rows = w->sampled.data();
  const int64_t dim = fixed_dim<D>(a.table.dim);
  const bool drifts = kOptimizer != Optimizer::kNone && a.table.track_drift;
  const int64_t unique = find_runs(keys, n, w->starts.data(), after);
  int64_t num_sampled = 0;
  for (int64_t u = 0; u < unique; ++u) {
    const int64_t ahead = u + kUpdateAhead < unique ? u + kUpdateAhead : unique - 1;
    prefetch_to_write<D>(a.table, static_cast<int64_t>(keys[starts[ahead]] >> 32));
    const int64_t first = starts[u];
    const int64_t count = starts[u + 1] - first;
    const int64_t row = static_cast<int64_t>(keys[first] >> 32);
    const int64_t accesses = accesses_of(a, keys + first, count);
    const bool sampled = after[u] != 0;
    track(a.table, row, accesses, sampled, drifts, delta, before + u, after + u);
    if constexpr (kOptimizer == Optimizer::kNone) {
      a.out_rows[u] = row;
      if (a.out_grad != nullptr) {
        const T* g = row_gradient<T, D, kKind>(a, keys + first, count, n - first, accesses, sums);
        copy_row<D>(static_cast<T*>(a.out_grad) + u * dim, g, dim);
      }
    } else {
      const T* g = row_gradient<T, D, kKind>(a, keys + first, count, n - first, accesses, sums);
      const float norm = optimise_row<D, kOptimizer>(a, row, g, sums + kSumLevels * dim);
      if (drifts) track_drift(a.table, row, before[u], norm, w->drift_before.data() + u, w->drift_after.data() + u);
    }
    sampled_rows[num_sampled] = static_cast<uint32_t>(row);
    num_sampled += sampled ? 1 : 0;
  }
  w->num_sampled = num_sampled;
  account_unit(a.table, drifts, w, unique, delta);
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
