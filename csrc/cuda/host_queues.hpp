#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "cuda/device.hpp"

namespace cpr::cuda {

// In-order queues of work, one for each stream, whose progress is drawn at random. Any thread may call; work runs on
// the thread of some caller, under the lock, and may not call back.
class HostQueues {
 public:
  using Work = std::function<void()>;
  using Ready = std::function<bool()>;  // whether work may begin

  HostQueues(uint64_t seed, bool deferred) : random_(seed), deferred_(deferred) {}

  void push(Stream stream, Work work, Ready ready = nullptr);
  void drain(Stream stream);
  // Runs work until `done` holds.
  void run_until(const Ready& done);
  // The same for what is asked again and again: some work runs, or none.
  bool poll(const Ready& done);
  Stream make_stream();
  void forget(Stream stream);
  // A permutation of the groups of a launch for `items` items.
  std::vector<int64_t> draw_order(int64_t items);

 private:
  struct Item {
    Work work;
    Ready ready;
  };

  bool step();  // false if no queue has work that may begin
  void drain_locked(Stream stream);

  std::recursive_mutex mutex_;  // guards what follows
  std::map<Stream, std::deque<Item>> queues_;
  std::mt19937_64 random_;
  const bool deferred_;
  Stream next_ = 1;
};

// On queues; a recorded point is a number that rises.
class HostEvent final : public Event {
 public:
  explicit HostEvent(HostQueues* queues) : queues_(queues) {}
  void record(Stream stream) override;
  void wait(Stream stream) override;
  bool done() override;
  void synchronize() override;
  double seconds_since(const Event& earlier) const override;

 private:
  struct Reached {
    uint64_t point = 0;
    std::chrono::steady_clock::time_point at;
  };

  HostQueues* const queues_;
  uint64_t recorded_ = 0;
  std::shared_ptr<Reached> reached_ = std::make_shared<Reached>();
};

}  // namespace cpr::cuda
