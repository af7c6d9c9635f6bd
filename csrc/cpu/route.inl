// Part of kernels.cpp: the unique rows of a batch, for rows that lie in other processes, and their summed gradients.

static int64_t distinct(const KeySpan* spans, int num_spans, int64_t n, int64_t num_rows, DistinctRows* out) noexcept {
  out->starts[0] = 0;
  if (n == 0) return 0;
  const uint64_t* keys = sort_keys(spans, num_spans, n, num_rows, out->keys_a, out->keys_b);
  int64_t u = -1;
  uint64_t row = ~uint64_t{0};
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t next = keys[i] >> 32;
    const bool begins = next != row;
    row = next;
    u += begins ? 1 : 0;
    out->rows[u] = static_cast<uint32_t>(next);
    out->starts[u] = begins ? static_cast<uint32_t>(i) : out->starts[u];
    const uint64_t position = keys[i] & kPositionMask;
    out->index[position] = (static_cast<uint64_t>(u) << 32) | position;
  }
  out->starts[u + 1] = static_cast<uint32_t>(n);
  out->sorted = keys;
  return u + 1;
}

template <int D, Occurrence kKind>
static void sum_rows_as(const UpdateArgs& a, const uint64_t* keys, const uint32_t* starts, int64_t rows, float* sums,
                        float* out) noexcept {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  for (int64_t u = 0; u < rows; ++u) {
    const int64_t count = starts[u + 1] - starts[u];
    const int64_t left = starts[rows] - starts[u];
    const float* g = row_gradient<float, D, kKind>(a, keys + starts[u], count, left, count, sums);
    copy_row<D>(out + u * dim, g, dim);
  }
}

template <int D>
static void sum_rows_of(const UpdateArgs& a, const uint64_t* keys, const uint32_t* starts, int64_t rows, float* sums,
                        float* out) noexcept {
  if (a.argmax != nullptr) return sum_rows_as<0, Occurrence::kLargest>(a, keys, starts, rows, sums, out);
  return a.per_sample_weights != nullptr || a.bag_length != nullptr
             ? sum_rows_as<D, Occurrence::kScaled>(a, keys, starts, rows, sums, out)
             : sum_rows_as<D, Occurrence::kPlain>(a, keys, starts, rows, sums, out);
}

static void sum_rows(const UpdateArgs& a, const uint64_t* keys, const uint32_t* starts, int64_t rows, void* scratch,
                     float* out) noexcept {
  float* sums = static_cast<float*>(scratch);
  switch (a.table.dim) {
    case 8:
      return sum_rows_of<8>(a, keys, starts, rows, sums, out);
    case 16:
      return sum_rows_of<16>(a, keys, starts, rows, sums, out);
    case 32:
      return sum_rows_of<32>(a, keys, starts, rows, sums, out);
    case 64:
      return sum_rows_of<64>(a, keys, starts, rows, sums, out);
    case 128:
      return sum_rows_of<128>(a, keys, starts, rows, sums, out);
    default:
      return sum_rows_of<0>(a, keys, starts, rows, sums, out);
  }
}
