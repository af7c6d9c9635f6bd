#include "cpu/thread_pool.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace cpr::cpu {
namespace {

constexpr int kMaxThreads = 256;
constexpr uint32_t kHelpersMask = 255;
constexpr int kSpins = 2000;  // polls before a worker parks, a few tens of microseconds

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Pool {
 public:
  void run(int64_t tasks, int threads, const std::function<void(int64_t, int)>& body) {
    start(threads - 1);
    body_ = &body;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    const uint32_t helpers = static_cast<uint32_t>(threads - 1);
    running_.store(threads - 1, std::memory_order_relaxed);
    const uint32_t call = call_.load(std::memory_order_relaxed);
    call_.store(((call & ~kHelpersMask) + kHelpersMask + 1) | helpers, std::memory_order_release);
    call_.notify_all();
    work(0);
    for (int spin = 0; running_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < kSpins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::mutex& mutex() { return mutex_; }

 private:
  void start(int count) {
    while (started_ < static_cast<uint32_t>(count)) {
      const uint32_t index = ++started_;
      std::thread([this, index, seen = call_.load(std::memory_order_acquire)] { loop(index, seen); }).detach();
    }
  }

  void loop(uint32_t index, uint32_t seen) {
    for (;;) {
      for (int spin = 0; spin < kSpins && call_.load(std::memory_order_acquire) == seen; ++spin) relax();
      call_.wait(seen, std::memory_order_acquire);
      seen = call_.load(std::memory_order_acquire);
      if (index > (seen & kHelpersMask)) continue;
      work(static_cast<int>(index));
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  void work(int thread) {
    for (int64_t task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
         task = next_.fetch_add(1, std::memory_order_relaxed)) {
      (*body_)(task, thread);
    }
  }

  std::mutex mutex_;
  uint32_t started_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int> running_{0};
  // Number of the call << 8 | helpers that take part in it: one word, so that a late worker can't mix two calls.
  std::atomic<uint32_t> call_{0};
};

std::atomic<Pool*> g_pool{nullptr};

// A forked child has none of the parent's workers, and may hold its locks: it forgets the pool.
void forget_pool() { g_pool.store(nullptr, std::memory_order_relaxed); }

Pool& pool() {
  Pool* current = g_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  static std::once_flag registered;
  std::call_once(registered, [] { pthread_atfork(nullptr, nullptr, forget_pool); });
  Pool* fresh = new Pool;  // never freed: detached workers use it until the process ends
  if (g_pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t, int)>& body) {
  if (threads > kMaxThreads) threads = kMaxThreads;
  if (threads > tasks) threads = static_cast<int>(tasks);
  if (threads > 1) {
    Pool& shared = pool();
    const std::unique_lock<std::mutex> lock(shared.mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      shared.run(tasks, threads, body);
      return;
    }
  }
  for (int64_t task = 0; task < tasks; ++task) body(task, 0);
}

}  // namespace cpr::cpu
