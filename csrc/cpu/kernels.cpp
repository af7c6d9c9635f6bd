// Compiled once per instruction set with CPR_LEVEL naming the namespace. Exports one table and no weak symbols:
// everything else is static or always inlined, and no std:: function is called.
#include "cpu/kernels.hpp"

#include <type_traits>

#include "core/half.hpp"
#include "core/ordered_sum.hpp"
#include "core/settle.hpp"
#include "core/steps.hpp"

namespace cpr::cpu::CPR_LEVEL {

#include "cpu/distance.inl"
#include "cpu/lookup.inl"
#include "cpu/sort.inl"
#include "cpu/ssu.inl"
#include "cpu/update.inl"

#include "cpu/route.inl"

static bool all_finite(const float* x, int64_t n) noexcept {
  // Exponent bits all set: infinity or NaN.
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    bad |= static_cast<uint32_t>((bits & 0x7f800000U) == 0x7f800000U);
  }
  return bad == 0;
}

static void initialise(const TableView& t, int64_t begin, int64_t end, uint64_t key, float low, float high, float state,
                       float* scratch) noexcept {
  for (int64_t row = begin; row < end; ++row) {
    const uint64_t row_key = hash2(key, static_cast<uint64_t>(row + t.row_offset));
    for (int64_t d = 0; d < t.dim; ++d) scratch[d] = uniform_element(row_key, static_cast<uint32_t>(d), low, high);
    if (t.format.dtype == DType::kFloat64) {
      double* w = static_cast<double*>(t.weight) + row * t.dim;
      for (int64_t d = 0; d < t.dim; ++d) w[d] = static_cast<double>(scratch[d]);
    } else {
      store_nearest(scratch, t.format.dtype, t.dim, weight_bytes_of(t, row));
    }
    meta_of(t, row)->state = state;
    for (int a = 0; a < t.num_arrays; ++a) {
      float* values = t.arrays[a].data + row * t.arrays[a].columns;
      for (int64_t c = 0; c < t.arrays[a].columns; ++c) values[c] = state;
    }
  }
}

#define CPR_STRING_(x) #x
#define CPR_STRING(x) CPR_STRING_(x)

extern const Kernels table;
const Kernels table = {CPR_STRING(CPR_LEVEL), read_ids,   pool,       update,    enter_sampled,
                       weight_grad,           all_finite, initialise, distances, distance_totals,
                       distance_sum,          distinct,   sum_rows};

}  // namespace cpr::cpu::CPR_LEVEL
