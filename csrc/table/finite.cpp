#include "table/finite.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/kernels.hpp"
#include "cpu/thread_pool.hpp"

namespace cpr {

namespace {
constexpr int64_t kSplitFloats = 1 << 16;
}  // namespace

bool all_finite(const float* x, int64_t n, int threads) {
  const int64_t tasks = (n + kSplitFloats - 1) / kSplitFloats;
  std::atomic<bool> finite{true};
  cpu::parallel_for(tasks, threads, [&](int64_t task, int) {
    const int64_t begin = task * kSplitFloats;
    if (!cpu::kernels().all_finite(x + begin, std::min(kSplitFloats, n - begin))) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load();
}

}  // namespace cpr
