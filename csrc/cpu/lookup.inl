// Part of kernels.cpp: reading ids and pooling bags.

inline constexpr int64_t kLookupAhead = 32;  // rows prefetched ahead

CPR_INLINE void prefetch_row(const float* row, int64_t dim) {
  const char* p = reinterpret_cast<const char*>(row);
  for (int64_t byte = 0; byte < dim * 4; byte += 64) __builtin_prefetch(p + byte);
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

template <int D>
CPR_INLINE void pool_long_bag(const LookupTask& task, int64_t begin, int64_t end, float* out, float* sums) {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  uint64_t count = 0;
  for (int64_t p = begin; p < end; ++p) {
    const float* row = task.table.weight + static_cast<int64_t>(task.keys[p] >> 32) * dim;
    const float scale = task.per_sample_weights != nullptr ? task.per_sample_weights[p] : 1.0F;
    if (count % kSumFanout == 0) {
      copy_scaled<D>(sums, row, scale, dim);
    } else {
      add_scaled<D>(sums, row, scale, dim);
    }
    carry_sums<D>(sums, ++count, dim);
  }
  copy_row<D>(out, finish_sums<D>(sums, count, dim), dim);
}

template <int D>
CPR_INLINE void pool_short_bag(const LookupTask& task, int64_t begin, int64_t end, int64_t last, float* out) {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  for (int64_t p = begin; p < end; ++p) {
    if (p + kLookupAhead < last) {
      prefetch_row(task.table.weight + static_cast<int64_t>(task.keys[p + kLookupAhead] >> 32) * dim, dim);
    }
    const float* row = task.table.weight + static_cast<int64_t>(task.keys[p] >> 32) * dim;
    if (task.per_sample_weights == nullptr) {
      if (p == begin) {
        copy_row<D>(out, row, dim);
      } else {
        add_row<D>(out, row, dim);
      }
    } else if (p == begin) {
      copy_scaled<D>(out, row, task.per_sample_weights[p], dim);
    } else {
      add_scaled<D>(out, row, task.per_sample_weights[p], dim);
    }
  }
}

// Bags of one id each: the row is the output, whatever the pooling.
template <int D>
CPR_INLINE void copy_rows(const LookupTask& task) {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  const uint64_t* keys = task.keys + task.offsets[0];
  for (int64_t b = 0; b < task.bags; ++b) {
    if (b + kLookupAhead < task.bags) {
      prefetch_row(task.table.weight + static_cast<int64_t>(keys[b + kLookupAhead] >> 32) * dim, dim);
    }
    const float* row = task.table.weight + static_cast<int64_t>(keys[b] >> 32) * dim;
    copy_row<D>(task.out + (task.first_row + b) * task.out_stride, row, dim);
  }
}

template <int D>
static void pool_bags(const LookupTask& task, float* sums) noexcept {
  const int64_t dim = fixed_dim<D>(task.table.dim);
  if (task.unit_bags && task.per_sample_weights == nullptr) return copy_rows<D>(task);
  const int64_t last = task.offsets[task.bags];
  for (int64_t b = 0; b < task.bags; ++b) {
    const int64_t begin = task.offsets[b];
    const int64_t end = task.offsets[b + 1];
    float* out = task.out + (task.first_row + b) * task.out_stride;
    const int64_t bag = task.first_bag + b;
    for (int64_t p = begin; p < end; ++p) task.bag_of[p] = static_cast<uint32_t>(bag);
    if (begin == end) {
      for (int64_t d = 0; d < dim; ++d) out[d] = 0.0F;
    } else if (end - begin <= kSumFanout) {
      pool_short_bag<D>(task, begin, end, last, out);
    } else {
      pool_long_bag<D>(task, begin, end, out, sums);
    }
    if (task.table.mean) {
      const float length = static_cast<float>(end - begin);
      task.inverse_length[bag] = end > begin ? 1.0F / length : 0.0F;
      if (end - begin > 1) {
        for (int64_t d = 0; d < dim; ++d) out[d] = out[d] / length;
      }
    }
  }
}

static void pool(const LookupTask& task, float* sums) noexcept {
  switch (task.table.dim) {
    case 8:
      return pool_bags<8>(task, sums);
    case 16:
      return pool_bags<16>(task, sums);
    case 32:
      return pool_bags<32>(task, sums);
    case 64:
      return pool_bags<64>(task, sums);
    case 128:
      return pool_bags<128>(task, sums);
    default:
      return pool_bags<0>(task, sums);
  }
}
