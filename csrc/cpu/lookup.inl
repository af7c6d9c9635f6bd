// Part of kernels.cpp: reading ids and pooling bags.

inline constexpr int64_t kLookupAhead = 16;  // rows prefetched ahead

CPR_INLINE void prefetch_row(const TableView& t, uint64_t key) {
  const int64_t bytes = weight_bytes(t.format);
  const char* p = static_cast<const char*>(t.weight) + static_cast<int64_t>(key >> 32) * bytes;
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(p + byte);
}

// The row as Ts: where it lies, or converted into `scratch`.
template <typename T, int D>
CPR_INLINE const T* row_of(const TableView& t, uint64_t key, T* scratch) {
  const int64_t row = static_cast<int64_t>(key >> 32);
  if constexpr (D == 0 && sizeof(T) == sizeof(float)) {
    if (t.format.dtype != DType::kFloat32) {
      load_floats(weight_bytes_of(t, row), t.format.dtype, t.dim, scratch);
      return scratch;
    }
  }
  return static_cast<const T*>(t.weight) + row * fixed_dim<D>(t.dim);
}

template <typename Id>
static int64_t read_ids_as(const Id* ids, int64_t begin, int64_t end, uint64_t num_rows, const SampleRule& sample,
                           uint64_t* keys) noexcept {
  uint64_t bad = 0;
  for (int64_t p = begin; p < end;) {
    const uint64_t block = static_cast<uint64_t>(p) / 64;
    const int64_t stop = static_cast<int64_t>(block + 1) * 64 < end ? static_cast<int64_t>(block + 1) * 64 : end;
    const uint64_t bits = sample.active ? sample_bits(sample.key, sample.step, block, sample.log2_period) : 0;
    for (; p < stop; ++p) {
      const uint64_t row = static_cast<uint64_t>(static_cast<int64_t>(ids[p]));
      const uint64_t position = static_cast<uint64_t>(p);
      bad |= static_cast<uint64_t>(row >= num_rows);
      keys[p] = (row << 32) | (((bits >> (position & 63)) & 1) << 31) | position;
    }
  }
  if (bad == 0) return -1;
  int64_t p = begin;
  while (static_cast<uint64_t>(static_cast<int64_t>(ids[p])) < num_rows) ++p;
  return p;
}

static int64_t read_ids(const void* ids, bool is_64bit, int64_t begin, int64_t end, int64_t num_rows,
                        const SampleRule& sample, uint64_t* keys) noexcept {
  const uint64_t rows = static_cast<uint64_t>(num_rows);
  return is_64bit ? read_ids_as(static_cast<const int64_t*>(ids), begin, end, rows, sample, keys)
                  : read_ids_as(static_cast<const int32_t*>(ids), begin, end, rows, sample, keys);
}

template <typename T>
CPR_INLINE const T* weights_of(const LookupTask& task) {
  return static_cast<const T*>(task.per_sample_weights);
}

template <typename T, int D>
CPR_INLINE void pool_long_bag(const LookupTask& task, int64_t begin, int64_t end, T* out, T* sums) {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  const T* weights = weights_of<T>(task);
  uint64_t count = 0;
  for (int64_t p = begin; p < end; ++p) {
    const T* row = row_of<T, D>(task.table, task.keys[p], sums + kSumLevels * dim);
    const T scale = weights != nullptr ? weights[p] : T{1};
    if (count % kSumFanout == 0) {
      copy_scaled<D>(sums, row, scale, dim);
    } else {
      add_scaled<D>(sums, row, scale, dim);
    }
    carry_sums<D>(sums, ++count, dim);
  }
  copy_row<D>(out, finish_sums<D>(sums, count, dim), dim);
}

template <typename T, int D>
CPR_INLINE void pool_short_bag(const LookupTask& task, int64_t begin, int64_t end, int64_t last, T* out, T* scratch) {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  const T* weights = weights_of<T>(task);
  for (int64_t p = begin; p < end; ++p) {
    if (p + kLookupAhead < last) prefetch_row(task.table, task.keys[p + kLookupAhead]);
    const T* row = row_of<T, D>(task.table, task.keys[p], scratch);
    if (weights == nullptr) {
      if (p == begin) {
        copy_row<D>(out, row, dim);
      } else {
        add_row<D>(out, row, dim);
      }
    } else if (p == begin) {
      copy_scaled<D>(out, row, weights[p], dim);
    } else {
      add_scaled<D>(out, row, weights[p], dim);
    }
  }
}

// Bags of one id each: the row is the output, whether summed or averaged.
template <typename T, int D>
CPR_INLINE void copy_rows(const LookupTask& task, T* scratch) {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  const uint64_t* keys = task.keys + task.offsets[0];
  T* out = static_cast<T*>(task.out) + task.first_row * task.out_stride;
  for (int64_t b = 0; b < task.bags; ++b) {
    if (b + kLookupAhead < task.bags) prefetch_row(task.table, keys[b + kLookupAhead]);
    copy_row<D>(out + b * task.out_stride, row_of<T, D>(task.table, keys[b], scratch), dim);
  }
}

template <typename T, int D>
static void pool_bags(const LookupTask& task, T* sums) noexcept {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  T* scratch = sums + kSumLevels * dim;
  if (task.unit_bags && task.per_sample_weights == nullptr) return copy_rows<T, D>(task, scratch);
  const bool mean = task.table.pooling == Pooling::kMean;
  const int64_t last = task.offsets[task.bags];
  for (int64_t b = 0; b < task.bags; ++b) {
    const int64_t begin = task.offsets[b];
    const int64_t end = task.offsets[b + 1];
    T* out = static_cast<T*>(task.out) + (task.first_row + b) * task.out_stride;
    const int64_t bag = task.first_bag + b;
    for (int64_t p = begin; p < end; ++p) task.bag_of[p] = static_cast<uint32_t>(bag);
    if (begin == end) {
      for (int64_t d = 0; d < dim; ++d) out[d] = T{0};
    } else if (end - begin <= kSumFanout) {
      pool_short_bag<T, D>(task, begin, end, last, out, scratch);
    } else {
      pool_long_bag<T, D>(task, begin, end, out, sums);
    }
    if (mean) {
      task.bag_length[bag] = static_cast<uint32_t>(end - begin);
      const T length = static_cast<T>(end - begin);
      if (end - begin > 1) {
        for (int64_t d = 0; d < dim; ++d) out[d] = out[d] / length;
      }
    }
  }
}

// The largest of each element, the first of equal ones; as in torch a NaN is kept only if it comes first.
template <typename T>
static void pool_max(const LookupTask& task, T* scratch) noexcept {
  const int64_t dim = task.table.dim;
  for (int64_t b = 0; b < task.bags; ++b) {
    const int64_t at = (task.first_row + b) * task.out_stride;
    T* out = static_cast<T*>(task.out) + at;
    uint32_t* argmax = task.argmax + at;
    for (int64_t d = 0; d < dim; ++d) {
      out[d] = T{0};
      argmax[d] = kNoPosition;
    }
    for (int64_t p = task.offsets[b]; p < task.offsets[b + 1]; ++p) {
      const T* row = row_of<T, 0>(task.table, task.keys[p], scratch);
      const bool first = p == task.offsets[b];
      task.bag_of[p] = static_cast<uint32_t>(task.first_bag + b);
      for (int64_t d = 0; d < dim; ++d) {
        const bool larger = first || row[d] > out[d];
        out[d] = larger ? row[d] : out[d];
        argmax[d] = larger ? static_cast<uint32_t>(p) : argmax[d];
      }
    }
  }
}

static void pool(const LookupTask& task, void* scratch) noexcept {
  const bool wide = task.table.format.dtype == DType::kFloat64;
  float* floats = static_cast<float*>(scratch);
  double* doubles = static_cast<double*>(scratch);
  if (task.table.pooling == Pooling::kMax) return wide ? pool_max(task, doubles) : pool_max(task, floats);
  if (wide) return pool_bags<double, 0>(task, doubles);
  if (task.table.format.dtype != DType::kFloat32) return pool_bags<float, 0>(task, floats);
  switch (task.table.dim) {
    case 8:
      return pool_bags<float, 8>(task, floats);
    case 16:
      return pool_bags<float, 16>(task, floats);
    case 32:
      return pool_bags<float, 32>(task, floats);
    case 64:
      return pool_bags<float, 64>(task, floats);
    case 128:
      return pool_bags<float, 128>(task, floats);
    default:
      return pool_bags<float, 0>(task, floats);
  }
}
