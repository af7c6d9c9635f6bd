// Part of kernels.cpp: stable sort of (row, position) keys by row.

inline constexpr int kMaxDigitBits = 12;
inline constexpr int kMaxPasses = 4;
inline constexpr int64_t kKeyCost = 4;  // of moving a key, in steps over counters
inline constexpr int64_t kInsertionLimit = 24;

static void insertion_sort(uint64_t* keys, int64_t n) noexcept {
  for (int64_t i = 1; i < n; ++i) {
    const uint64_t key = keys[i];
    int64_t j = i;
    for (; j > 0 && (keys[j - 1] & ~kSampledFlag) > (key & ~kSampledFlag); --j) keys[j] = keys[j - 1];
    keys[j] = key;
  }
}

// Least significant digit first; all digits are counted in one pass.
template <int kPasses>
static const uint64_t* radix_sort(const KeySpan* spans, int num_spans, int64_t n, int bits, uint64_t* a,
                                  uint64_t* b) noexcept {
  uint32_t next[kPasses << kMaxDigitBits];
  const uint64_t digits = uint64_t{1} << bits;
  const uint64_t mask = digits - 1;
  for (uint64_t i = 0; i < kPasses * digits; ++i) next[i] = 0;
  for (int s = 0; s < num_spans; ++s) {
    for (int64_t i = 0; i < spans[s].size; ++i) {
      uint64_t digit = spans[s].keys[i] >> 32;
      for (int pass = 0; pass < kPasses; ++pass, digit >>= bits)
        ++next[(static_cast<uint64_t>(pass) << bits) + (digit & mask)];
    }
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    uint32_t sum = 0;
    uint32_t* counts = next + (static_cast<uint64_t>(pass) << bits);
    for (uint64_t digit = 0; digit < digits; ++digit) {
      const uint32_t count = counts[digit];
      counts[digit] = sum;
      sum += count;
    }
  }
  KeySpan whole;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int shift = 32 + pass * bits;
    uint32_t* starts = next + (static_cast<uint64_t>(pass) << bits);
    for (int s = 0; s < num_spans; ++s) {
      const uint64_t* keys = spans[s].keys;
      const int64_t size = spans[s].size;
      for (int64_t i = 0; i < size; ++i) a[starts[(keys[i] >> shift) & mask]++] = keys[i];
    }
    whole = {a, n};
    spans = &whole;
    num_spans = 1;
    uint64_t* swap = a;
    a = b;
    b = swap;
  }
  return whole.keys;
}

// How many passes over digits of how many bits sort n keys of row_bits: fewest operations, counted in additions.
struct RadixPlan {
  int passes = 0;
  int bits = 0;
};

CPR_INLINE RadixPlan plan_radix(int row_bits, int64_t n) {
  RadixPlan best;
  int64_t least = INT64_MAX;
  for (int passes = (row_bits + kMaxDigitBits - 1) / kMaxDigitBits; passes <= kMaxPasses; ++passes) {
    const int bits = (row_bits + passes - 1) / passes;
    const int64_t cost = passes * (kKeyCost * n + (int64_t{1} << bits));
    if (cost < least) {
      least = cost;
      best = {passes, bits};
    }
  }
  return best;
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
  const RadixPlan plan = plan_radix(row_bits, n);
  switch (plan.passes) {
    case 1:
      return radix_sort<1>(spans, num_spans, n, plan.bits, a, b);
    case 2:
      return radix_sort<2>(spans, num_spans, n, plan.bits, a, b);
    case 3:
      return radix_sort<3>(spans, num_spans, n, plan.bits, a, b);
    default:
      return radix_sort<kMaxPasses>(spans, num_spans, n, plan.bits, a, b);
  }
}
