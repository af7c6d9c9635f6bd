#include "store/blocks.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

namespace cpr::store {
namespace {

class Blocks {
 public:
  Blocks(size_t tasks, std::function<void(size_t, size_t)> body) : tasks_(tasks), body_(std::move(body)) {}

  void work(size_t thread) {
    for (size_t task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
         task = next_.fetch_add(1, std::memory_order_relaxed)) {
      body_(task, thread);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks_) done_.notify_all();
    }
  }

  void wait() const {
    for (size_t done = done_.load(std::memory_order_acquire); done != tasks_;
         done = done_.load(std::memory_order_acquire)) {
      done_.wait(done, std::memory_order_acquire);
    }
  }

 private:
  const size_t tasks_;
  const std::function<void(size_t, size_t)> body_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
};

}  // namespace

void run_blocks(size_t tasks, size_t threads, std::function<void(size_t, size_t)> body) {
  const auto blocks = std::make_shared<Blocks>(tasks, std::move(body));
  try {
    for (size_t helper = 1; helper < threads; ++helper)
      std::thread([blocks, helper] { blocks->work(helper); }).detach();
  } catch (const std::exception&) {
    // No thread or no memory for one to be had: this one does what is left.
  }
  blocks->work(0);
  blocks->wait();
}

}  // namespace cpr::store
