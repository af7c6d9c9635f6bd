// Part of kernels.cpp: how far rows are from a copy of them. Sums as sum_of_squares has them: lane = element mod 32,
// each lane in order, then neighbouring lanes pairwise; in double precision for float64.

template <typename T>
struct SixteenOf {
  typedef T Type __attribute__((vector_size(16 * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <typename T>
using Sixteen = typename SixteenOf<T>::Type;

// What a dtype is stored as and computed in.
template <DType kType>
struct ItemOf {
  using Stored = uint16_t;
  using Number = float;
};
template <>
struct ItemOf<DType::kFloat32> {
  using Stored = float;
  using Number = float;
};
template <>
struct ItemOf<DType::kFloat64> {
  using Stored = double;
  using Number = double;
};

template <DType kType>
using Numbers = Sixteen<typename ItemOf<kType>::Number>;

template <DType kType>
CPR_INLINE Numbers<kType> widen16(Sixteen<typename ItemOf<kType>::Stored> stored) {
  if constexpr (kType == DType::kBFloat16) {
    return reinterpret_cast<Sixteen<float>>(__builtin_convertvector(stored, Sixteen<uint32_t>) << 16);
  } else if constexpr (kType == DType::kFloat16) {  // float_from_float16, in lanes
    const Sixteen<uint32_t> half = __builtin_convertvector(stored, Sixteen<uint32_t>);
    const Sixteen<uint32_t> magnitude = (half & 0x7fffU) << 13;
    const Sixteen<uint32_t> special = reinterpret_cast<Sixteen<uint32_t>>(magnitude >= (0x7c00U << 13)) & 0x7f800000U;
    const Sixteen<float> moved = reinterpret_cast<Sixteen<float>>(magnitude) * 0x1p112F;
    return reinterpret_cast<Sixteen<float>>(reinterpret_cast<Sixteen<uint32_t>>(moved) | special |
                                            (half & 0x8000U) << 16);
  } else {
    return stored;
  }
}

// Items [at, at + 16) of a row as numbers, those from `n` on as 0. `room`: items that may be read from `row` on, which
// include rows after it.
template <DType kType>
CPR_INLINE Numbers<kType> load16(const char* row, int64_t at, int64_t n, int64_t room) {
  using Stored = typename ItemOf<kType>::Stored;
  const Stored* items = reinterpret_cast<const Stored*>(row) + at;
  Sixteen<Stored> stored = {};
  if (n - at >= 16) {
    stored = *reinterpret_cast<const Sixteen<Stored>*>(items);
  } else if (room - at >= 16) {
    using Bits =
        std::conditional_t<sizeof(Stored) == 2, uint16_t, std::conditional_t<sizeof(Stored) == 4, uint32_t, uint64_t>>;
    constexpr Sixteen<Bits> lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Sixteen<Bits> all = *reinterpret_cast<const Sixteen<Bits>*>(items);
    const Sixteen<Bits> kept = all & reinterpret_cast<Sixteen<Bits>>(lane < static_cast<Bits>(n - at));
    stored = reinterpret_cast<Sixteen<Stored>>(kept);
  } else {
    for (int64_t j = 0; j < n - at; ++j) stored[j] = items[j];
  }
  return widen16<kType>(stored);
}

// The sum of 32 lanes, neighbours pairwise.
template <typename T>
CPR_INLINE T sum_lanes(Sixteen<T> low, Sixteen<T> high) {
  Sixteen<T> v = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
                 __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  v += __builtin_shufflevector(v, v, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  v += __builtin_shufflevector(v, v, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14);
  v += __builtin_shufflevector(v, v, 4, 4, 4, 4, 4, 4, 4, 4, 12, 12, 12, 12, 12, 12, 12, 12);
  return v[0] + v[8];
}

template <typename T>
CPR_INLINE Sixteen<T> magnitude_of(Sixteen<T> x) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return reinterpret_cast<Sixteen<T>>(reinterpret_cast<Sixteen<Bits>>(x) & (~Bits{0} >> 1));
}

// What the items of a row are multiplied by: 0 if they sum to 0, NaN if their sum isn't finite.
template <typename T>
CPR_INLINE T share_of(T total) {
  return total == T{0} ? T{0} : T{1} / total + (total - total);
}

// Sum of (a - b)^2, |a - b| or |a * share_a - b * share_b| over `n` items.
template <DType kType, Distance kKind, typename T = typename ItemOf<kType>::Number>
CPR_INLINE T sum_of_differences(const char* a, const char* b, int64_t n, int64_t room, T share_a, T share_b) {
  const auto term = [&](int64_t at) __attribute__((always_inline)) {
    Sixteen<T> x = load16<kType>(a, at, n, room);
    Sixteen<T> y = load16<kType>(b, at, n, room);
    if constexpr (kKind == Distance::kTv) {
      x *= share_a;
      y *= share_b;
    }
    const Sixteen<T> difference = x - y;
    return kKind == Distance::kL2 ? difference * difference : magnitude_of<T>(difference);
  };
  Sixteen<T> low = term(0);
  Sixteen<T> high = {};
  if (n > 16) high = term(16);
  int64_t at = 32;
  for (; at + 32 <= n; at += 32) {
    low += term(at);
    high += term(at + 16);
  }
  if (at < n) low += term(at);
  if (at + 16 < n) high += term(at + 16);
  return sum_lanes<T>(low, high);
}

// The sums of `n` items of both, each as sum_lanes has it: they share the lanes of the later steps.
template <DType kType, typename T = typename ItemOf<kType>::Number>
CPR_INLINE void sums_of_items(const char* a, const char* b, int64_t n, int64_t room, T* out) {
  Sixteen<T> low_a = {};
  Sixteen<T> low_b = {};
  Sixteen<T> high_a = {};
  Sixteen<T> high_b = {};
  for (int64_t at = 0; at < n; at += 32) {
    low_a += load16<kType>(a, at, n, room);
    low_b += load16<kType>(b, at, n, room);
    if (at + 16 < n) {
      high_a += load16<kType>(a, at + 16, n, room);
      high_b += load16<kType>(b, at + 16, n, room);
    }
  }
  const auto neighbours = [](Sixteen<T> x, Sixteen<T> y) __attribute__((always_inline)) {
    return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  };
  Sixteen<T> v = neighbours(neighbours(low_a, high_a), neighbours(low_b, high_b));
  for (int step = 0; step < 3; ++step) v = neighbours(v, v);
  out[0] = v[0];
  out[1] = v[1];
}

// Rows whose sums, shares and distances are computed together: each is a loop of its own, whose rows don't wait for
// each other, over what the first has brought into the cache.
inline constexpr int64_t kDistanceRows = 64;
inline constexpr int64_t kDistanceItems = 1 << 11;

template <DType kType, Distance kKind>
static void row_distances(const DistanceTask& t, float* out) noexcept {
  using T = typename ItemOf<kType>::Number;
  const int64_t bytes = t.dim * static_cast<int64_t>(sizeof(typename ItemOf<kType>::Stored));
  const int64_t fitting = kDistanceItems / t.dim;
  const int64_t block = fitting < 1 ? 1 : fitting < kDistanceRows ? fitting : kDistanceRows;
  T shares[2 * kDistanceRows];
  T sums[kDistanceRows];
  for (int64_t first = 0; first < t.rows; first += block) {
    const int64_t n = t.rows - first < block ? t.rows - first : block;
    const char* now = t.now + first * bytes;
    const char* saved = t.saved + first * bytes;
    const int64_t room = t.room - first * t.dim;
    if constexpr (kKind == Distance::kTv) {
      for (int64_t i = 0; i < n; ++i) {
        sums_of_items<kType>(now + i * bytes, saved + i * bytes, t.dim, room - i * t.dim, shares + 2 * i);
      }
      for (int64_t i = 0; i < 2 * n; ++i) shares[i] = share_of<T>(shares[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const T share_a = kKind == Distance::kTv ? shares[2 * i] : T{1};
      const T share_b = kKind == Distance::kTv ? shares[2 * i + 1] : T{1};
      sums[i] = sum_of_differences<kType, kKind>(now + i * bytes, saved + i * bytes, t.dim, room - i * t.dim, share_a,
                                                 share_b);
    }
    for (int64_t i = 0; i < n; ++i) out[first + i] = finish_distance<T>(kKind, sums[i]);
  }
}

template <DType kType>
static void segment_sums(const DistanceTask& t, const double* totals, double* out) noexcept {
  using T = typename ItemOf<kType>::Number;
  const T shares[2] = {share_of<T>(static_cast<T>(totals[0])), share_of<T>(static_cast<T>(totals[1]))};
  switch (t.kind) {
    case Distance::kL2:
      *out = static_cast<double>(
          sum_of_differences<kType, Distance::kL2>(t.now, t.saved, t.dim, t.room, shares[0], shares[1]));
      break;
    case Distance::kL1:
      *out = static_cast<double>(
          sum_of_differences<kType, Distance::kL1>(t.now, t.saved, t.dim, t.room, shares[0], shares[1]));
      break;
    case Distance::kTv:
      *out = static_cast<double>(
          sum_of_differences<kType, Distance::kTv>(t.now, t.saved, t.dim, t.room, shares[0], shares[1]));
      break;
  }
}

template <DType kType>
static void segment_totals(const DistanceTask& t, double* out) noexcept {
  typename ItemOf<kType>::Number totals[2];
  sums_of_items<kType>(t.now, t.saved, t.dim, t.room, totals);
  out[0] = static_cast<double>(totals[0]);
  out[1] = static_cast<double>(totals[1]);
}

template <DType kType>
CPR_INLINE void row_distances_of(const DistanceTask& t, float* out) {
  if (t.kind == Distance::kL2) return row_distances<kType, Distance::kL2>(t, out);
  if (t.kind == Distance::kL1) return row_distances<kType, Distance::kL1>(t, out);
  row_distances<kType, Distance::kTv>(t, out);
}

static void distances(const DistanceTask& t, float* out) noexcept {
  if (t.dtype == DType::kFloat32) return row_distances_of<DType::kFloat32>(t, out);
  if (t.dtype == DType::kFloat64) return row_distances_of<DType::kFloat64>(t, out);
  if (t.dtype == DType::kBFloat16) return row_distances_of<DType::kBFloat16>(t, out);
  row_distances_of<DType::kFloat16>(t, out);
}

static void distance_totals(const DistanceTask& t, double* out) noexcept {
  if (t.dtype == DType::kFloat32) return segment_totals<DType::kFloat32>(t, out);
  if (t.dtype == DType::kFloat64) return segment_totals<DType::kFloat64>(t, out);
  if (t.dtype == DType::kBFloat16) return segment_totals<DType::kBFloat16>(t, out);
  segment_totals<DType::kFloat16>(t, out);
}

static void distance_sum(const DistanceTask& t, const double* totals, double* out) noexcept {
  if (t.dtype == DType::kFloat32) return segment_sums<DType::kFloat32>(t, totals, out);
  if (t.dtype == DType::kFloat64) return segment_sums<DType::kFloat64>(t, totals, out);
  if (t.dtype == DType::kBFloat16) return segment_sums<DType::kBFloat16>(t, totals, out);
  segment_sums<DType::kFloat16>(t, totals, out);
}
