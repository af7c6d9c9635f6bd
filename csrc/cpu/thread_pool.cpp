#include "cpu/thread_pool.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace cpr::cpu {
namespace {

constexpr int kSpins = 2000;  // polls before a worker parks, a few tens of microseconds

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Runs one call after another; a worker polls for a while after each, since the next call of a step is near, then
// parks.
class Worker {
 public:
  // Starts a detached thread that runs `work` once for every call of wake(); `work` lives as long as the process.
  explicit Worker(std::function<void()> work) : work_(std::move(work)) {
    std::thread([this] { loop(); }).detach();
  }

  void wake() {
    calls_.fetch_add(1, std::memory_order_seq_cst);
    if (!parked_.load(std::memory_order_seq_cst)) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }
    called_.notify_one();
  }

 private:
  void loop() {
    for (uint64_t seen = 0;; ++seen) {
      for (int spin = 0; spin < kSpins && calls_.load(std::memory_order_acquire) == seen; ++spin) relax();
      if (calls_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        parked_.store(true, std::memory_order_seq_cst);
        called_.wait(lock, [&] { return calls_.load(std::memory_order_seq_cst) != seen; });
        parked_.store(false, std::memory_order_seq_cst);
      }
      work_();
    }
  }

  const std::function<void()> work_;
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> parked_{false};
  std::mutex mutex_;
  std::condition_variable called_;
};

class Pool {
 public:
  void run(int64_t tasks, int threads, const std::function<void(int64_t, int)>& body) {
    const size_t helpers = static_cast<size_t>(threads - 1);
    while (workers_.size() < helpers) {
      const int thread = static_cast<int>(workers_.size()) + 1;
      workers_.push_back(std::make_unique<Worker>([this, thread] {
        work(thread);
        running_.fetch_sub(1, std::memory_order_release);
      }));
    }
    body_ = &body;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    running_.store(threads - 1, std::memory_order_relaxed);
    for (size_t i = 0; i < helpers; ++i) workers_[i]->wake();
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
  void work(int thread) {
    for (int64_t task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
         task = next_.fetch_add(1, std::memory_order_relaxed)) {
      (*body_)(task, thread);
    }
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int> running_{0};
};

// GCC's OpenMP entry points, which LLVM's and Intel's runtimes export too.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* argument, unsigned threads, unsigned flags) = nullptr;
  int (*thread)() = nullptr;
};

struct OpenMpCall {
  const std::function<void(int64_t, int)>* body;
  int64_t tasks;
  int (*thread)();
  std::atomic<int64_t> next{0};
};

void run_openmp_thread(void* argument) {
  OpenMpCall& call = *static_cast<OpenMpCall*>(argument);
  const int thread = call.thread();
  for (int64_t task = call.next.fetch_add(1, std::memory_order_relaxed); task < call.tasks;
       task = call.next.fetch_add(1, std::memory_order_relaxed)) {
    (*call.body)(task, thread);
  }
}

std::atomic<Pool*> g_pool{nullptr};
std::atomic<const OpenMp*> g_openmp{nullptr};

// A forked child has none of the parent's threads, and may hold its locks: it forgets them.
void forget_threads() {
  g_pool.store(nullptr, std::memory_order_relaxed);
  g_openmp.store(nullptr, std::memory_order_relaxed);
}

void forget_threads_at_fork() {
  static std::once_flag registered;
  std::call_once(registered, [] { pthread_atfork(nullptr, nullptr, forget_threads); });
}

Pool& pool() {
  Pool* current = g_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  forget_threads_at_fork();
  Pool* fresh = new Pool;  // never freed: detached workers use it until the process ends
  if (g_pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

bool share_openmp(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);  // stays open: torch holds it as well
  if (library == nullptr) return false;
  OpenMp found;
  found.parallel = reinterpret_cast<decltype(found.parallel)>(dlsym(library, "GOMP_parallel"));
  found.thread = reinterpret_cast<decltype(found.thread)>(dlsym(library, "omp_get_thread_num"));
  if (found.parallel == nullptr || found.thread == nullptr) return false;
  forget_threads_at_fork();
  static const OpenMp shared = found;
  g_openmp.store(&shared, std::memory_order_release);
  return true;
}

void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t, int)>& body) {
  if (threads > kMaxThreads) threads = kMaxThreads;
  if (threads > tasks) threads = static_cast<int>(tasks);
  if (threads > 1) {
    if (const OpenMp* openmp = g_openmp.load(std::memory_order_acquire)) {
      OpenMpCall call{&body, tasks, openmp->thread};
      openmp->parallel(run_openmp_thread, &call, static_cast<unsigned>(threads), 0);
      return;
    }
    Pool& own = pool();
    const std::unique_lock<std::mutex> lock(own.mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      own.run(tasks, threads, body);
      return;
    }
  }
  for (int64_t task = 0; task < tasks; ++task) body(task, 0);
}

}  // namespace cpr::cpu
