#include "core/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cpr {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82f63b78u;
constexpr uint32_t kOne = 0x80000000u;  // x^0: reflected, the highest bit is the lowest power

// a * b modulo the polynomial.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * bytes) modulo the polynomial: what appending `bytes` zero bytes multiplies a register by.
constexpr uint32_t zeros_operator(uint64_t bytes) {
  uint32_t result = kOne;
  uint32_t power = kOne >> 8;  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = multiply(result, power);
    power = multiply(power, power);
  }
  return result;
}

using Table = std::array<uint32_t, 256>;

constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    slices[0][byte] = crc;
  }
  for (size_t slice = 1; slice < 8; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = slices[slice - 1][byte];
      slices[slice][byte] = (crc >> 8) ^ slices[0][crc & 0xff];
    }
  }
  return slices;
}

constexpr std::array<Table, 8> kSlices = make_slices();

inline uint64_t load_word(const unsigned char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Eight bytes a turn by tables ("slicing-by-8").
uint32_t update_portable(const unsigned char* data, size_t size, uint32_t crc) noexcept {
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = load_word(data) ^ crc;
    crc = 0;
    for (int byte = 0; byte < 8; ++byte) crc ^= kSlices[7 - byte][(word >> (8 * byte)) & 0xff];
  }
  for (; size != 0; ++data, --size) crc = (crc >> 8) ^ kSlices[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__)

constexpr size_t kStripe = 4096;  // bytes of each of three independent streams

// Multiplication by zeros_operator(kStripe), one table per byte of the register.
constexpr std::array<Table, 4> make_stripe_shift() {
  std::array<Table, 4> shift{};
  const uint32_t by_stripe = zeros_operator(kStripe);
  for (uint32_t position = 0; position < 4; ++position) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      shift[position][byte] = multiply(by_stripe, byte << (8 * position));
    }
  }
  return shift;
}

constexpr std::array<Table, 4> kStripeShift = make_stripe_shift();

inline uint32_t shift_stripe(uint32_t crc) {
  return kStripeShift[0][crc & 0xff] ^ kStripeShift[1][(crc >> 8) & 0xff] ^ kStripeShift[2][(crc >> 16) & 0xff] ^
         kStripeShift[3][crc >> 24];
}

// The instruction takes 3 cycles and one can start every cycle: three streams keep it busy.
__attribute__((target("sse4.2"))) uint32_t update_sse42(const unsigned char* data, size_t size, uint32_t crc) noexcept {
  for (; size >= 3 * kStripe; data += 3 * kStripe, size -= 3 * kStripe) {
    uint64_t first = crc;
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStripe; i += 8) {
      first = _mm_crc32_u64(first, load_word(data + i));
      second = _mm_crc32_u64(second, load_word(data + kStripe + i));
      third = _mm_crc32_u64(third, load_word(data + 2 * kStripe + i));
    }
    crc = shift_stripe(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
    crc = shift_stripe(crc) ^ static_cast<uint32_t>(third);
  }
  uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load_word(data));
  crc = static_cast<uint32_t>(wide);
  for (; size != 0; ++data, --size) crc = _mm_crc32_u8(crc, *data);
  return crc;
}

constexpr size_t kFold = 256;  // bytes of four registers
constexpr size_t kLeastFold = 4 * kFold;

// x^power modulo the polynomial as carry-less multiplication takes it. The product of two reflected numbers comes out
// multiplied by x, so powers are one less than what they stand for.
constexpr int64_t fold_constant(uint64_t power) {
  uint32_t result = zeros_operator(power / 8);
  for (uint64_t bit = 0; bit < power % 8; ++bit) result = multiply(result, kOne >> 1);
  return static_cast<int64_t>(static_cast<uint64_t>(result) << 32);
}

constexpr int64_t kFoldFirst = fold_constant(8 * kFold + 64 - 1);  // for the first 8 of 16 bytes
constexpr int64_t kFoldSecond = fold_constant(8 * kFold - 1);

#define CPR_FOLD __attribute__((target("avx512f,vpclmulqdq"), always_inline)) inline

// The 16-byte lanes of `sum` moved on by kFold bytes, and `data` there.
CPR_FOLD __m512i fold(__m512i sum, __m512i constants, const unsigned char* data) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, constants, 0x00),
                                   _mm512_clmulepi64_epi128(sum, constants, 0x11), _mm512_loadu_si512(data), 0x96);
}

#undef CPR_FOLD

// Carry-less multiplication replaces 256 bytes by 256 others of the same remainder until few are left.
__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) uint32_t update_folding(const unsigned char* data, size_t size,
                                                                             uint32_t crc) noexcept {
  if (size < kLeastFold) return update_sse42(data, size, crc);
  const __m512i constants = _mm512_set4_epi64(kFoldSecond, kFoldFirst, kFoldSecond, kFoldFirst);
  const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  __m512i first = _mm512_xor_si512(_mm512_loadu_si512(data), start);
  __m512i second = _mm512_loadu_si512(data + 64);
  __m512i third = _mm512_loadu_si512(data + 128);
  __m512i fourth = _mm512_loadu_si512(data + 192);
  for (data += kFold, size -= kFold; size >= kFold; data += kFold, size -= kFold) {
    first = fold(first, constants, data);
    second = fold(second, constants, data + 64);
    third = fold(third, constants, data + 128);
    fourth = fold(fourth, constants, data + 192);
  }
  unsigned char rest[kFold];
  _mm512_storeu_si512(rest, first);
  _mm512_storeu_si512(rest + 64, second);
  _mm512_storeu_si512(rest + 128, third);
  _mm512_storeu_si512(rest + 192, fourth);
  return update_sse42(data, size, update_sse42(rest, kFold, 0));
}

#endif

using Update = uint32_t (*)(const unsigned char*, size_t, uint32_t) noexcept;

Update choose(bool portable, bool wide) noexcept {
#if defined(__x86_64__)
  if (!portable && wide && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) {
    return update_folding;
  }
  if (!portable && __builtin_cpu_supports("sse4.2")) return update_sse42;
#endif
  static_cast<void>(portable);
  static_cast<void>(wide);
  return update_portable;
}

Update update = choose(false, true);

}  // namespace

uint32_t crc32c(const void* data, size_t size, uint32_t crc) noexcept {
  return ~update(static_cast<const unsigned char*>(data), size, ~crc);
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept {
  return multiply(zeros_operator(length_b), crc_a) ^ crc_b;
}

void crc32c_choose(bool portable, bool wide) noexcept { update = choose(portable, wide); }

}  // namespace cpr
