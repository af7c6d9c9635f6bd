#pragma once

#include <cstdint>
#include <string_view>

#include "core/macros.hpp"

// Stateless hashes: every random choice of the engine is a function of seed, step, row or position, never of a
// generator's state, so that any thread count, instruction set or process makes the same choice.
namespace cpr {

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), a bijection of 64 bits.
CPR_INLINE uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

CPR_INLINE uint64_t hash2(uint64_t a, uint64_t b) {
  return mix64(mix64(a + 0x9e3779b97f4a7c15ULL) + b * 0x9e3779b97f4a7c15ULL);
}

// FNV-1a of a name, mixed with the seed: tables are told apart by name, so their order doesn't matter.
inline uint64_t table_key(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash2(seed, h);
}

// Bits of 64 consecutive positions [64*block, 64*block + 64): a bit is set with probability 2^-log2_period.
CPR_INLINE uint64_t sample_bits(uint64_t key, uint64_t step, uint64_t block, int log2_period) {
  uint64_t bits = ~uint64_t{0};
  for (int k = 0; k < log2_period; ++k) bits &= hash2(hash2(key + static_cast<uint64_t>(k), step), block);
  return bits;
}

// Of one step and table: rows of half precision are rounded by it.
CPR_INLINE uint64_t rounding_key(uint64_t key, uint64_t step) { return hash2(key + 0x52U, step); }

// 32 random bits for element `column` of the row whose key is row_key; the high ones are the best.
CPR_INLINE uint32_t element_bits(uint64_t row_key, uint32_t column) {
  uint32_t x = static_cast<uint32_t>(row_key) + column * 0x9e3779b9U;
  x ^= x >> 16;
  x *= 0x21f0aaadU;
  x ^= x >> 15;
  x *= 0x735a2d97U;
  x ^= x >> 15;
  return x ^ static_cast<uint32_t>(row_key >> 32);
}

// Uniform in [low, high) with 24 random bits.
CPR_INLINE float uniform_element(uint64_t row_key, uint32_t column, float low, float high) {
  const uint32_t bits = element_bits(row_key, column) >> 8;
  const float unit = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-24F;
  return low + unit * (high - low);
}

}  // namespace cpr
