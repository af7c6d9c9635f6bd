#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "core/ordered_sum.hpp"
#include "cpu/kernels.hpp"

namespace cpr::cpu {

namespace base {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

// Weakest first.
std::vector<const Kernels*> available() {
  std::vector<const Kernels*> levels = {&base::table};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) levels.push_back(&avx2::table);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    levels.push_back(&avx512::table);
  }
#endif
  return levels;
}

const Kernels& choose() {
  const std::vector<const Kernels*> levels = available();
  const char* wanted = std::getenv("CPR_ISA");
  if (wanted == nullptr || *wanted == '\0') return *levels.back();
  std::string known;
  for (const Kernels* level : levels) {
    if (std::string(level->name) == wanted) return *level;
    known += std::string(known.empty() ? "" : ", ") + level->name;
  }
  throw std::invalid_argument("CPR_ISA: expected one of " + known + " on this machine, got '" + wanted + "'");
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

std::vector<std::string> supported_levels() {
  std::vector<std::string> names;
  for (const Kernels* level : available()) names.emplace_back(level->name);
  return names;
}

void Workspace::reserve(int64_t keys, int64_t dim, bool drift) {
  const size_t n = static_cast<size_t>(keys);
  if (keys_a.size() < n) {
    keys_a.resize(n);
    keys_b.resize(n);
    before.resize(n);
    after.resize(n);
    sampled.resize(n);
    starts.resize(n + 1);
  }
  if (drift && drift_before.size() < n) {
    drift_before.resize(n);
    drift_after.resize(n);
  }
  const size_t sums_size = static_cast<size_t>((kSumLevels + kScratchRows) * dim);
  if (sums.size() < sums_size) sums.resize(sums_size);
}

}  // namespace cpr::cpu
