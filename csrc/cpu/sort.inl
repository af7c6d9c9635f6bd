// Part of kernels.cpp: stable sort of (row, position) keys by row.

inline constexpr int kMaxDigitBits = 11;
inline constexpr int64_t kInsertionLimit = 24;

static void insertion_sort(uint64_t* keys, int64_t n) noexcept {
  for (int64_t i = 1; i < n; ++i) {
    const uint64_t key = keys[i];
    int64_t j = i;
    for (; j > 0 && (keys[j - 1] & ~kSampledFlag) > (key & ~kSampledFlag); --j) keys[j] = keys[j - 1];
    keys[j] = key;
  }
}

// One counting pass over digit [shift, shift + bits) from the spans to `out`.
static void radix_pass(const KeySpan* spans, int num_spans, int shift, int bits, uint64_t* out) noexcept {
  uint32_t start[1 << kMaxDigitBits];
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (uint64_t digit = 0; digit <= mask; ++digit) start[digit] = 0;
  for (int s = 0; s < num_spans; ++s) {
    for (int64_t i = 0; i < spans[s].size; ++i) ++start[(spans[s].keys[i] >> shift) & mask];
  }
  uint32_t sum = 0;
  for (uint64_t digit = 0; digit <= mask; ++digit) {
    const uint32_t count = start[digit];
    start[digit] = sum;
    sum += count;
  }
  for (int s = 0; s < num_spans; ++s) {
    for (int64_t i = 0; i < spans[s].size; ++i) {
      const uint64_t key = spans[s].keys[i];
      out[start[(key >> shift) & mask]++] = key;
    }
  }
}

// Returns the sorted keys, in one of the two buffers. Positions within a span ascend, and spans follow each other in
// position.
static const uint64_t* sort_keys(const KeySpan* spans, int num_spans, int64_t n, int64_t num_rows, uint64_t* a,
                                 uint64_t* b) noexcept {
  if (n <= kInsertionLimit) {
    int64_t filled = 0;
    for (int s = 0; s < num_spans; ++s) {
      for (int64_t i = 0; i < spans[s].size; ++i) a[filled++] = spans[s].keys[i];
    }
    insertion_sort(a, n);
    return a;
  }
  const int row_bits = num_rows > 1 ? 64 - __builtin_clzll(static_cast<uint64_t>(num_rows - 1)) : 1;
  const int widest = n > 8192 ? kMaxDigitBits : 9;
  const int passes = (row_bits + widest - 1) / widest;
  const int bits = (row_bits + passes - 1) / passes;
  radix_pass(spans, num_spans, 32, bits, a);
  for (int pass = 1; pass < passes; ++pass) {
    const KeySpan whole{a, n};
    radix_pass(&whole, 1, 32 + pass * bits, bits, b);
    uint64_t* swap = a;
    a = b;
    b = swap;
  }
  return a;
}
