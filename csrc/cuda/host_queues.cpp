#include "cuda/host_queues.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace cpr::cuda {

namespace {
constexpr int64_t kMaxGroups = 97;
}

void HostQueues::push(Stream stream, Work work, Ready ready) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  queues_[stream].push_back({std::move(work), std::move(ready)});
  if (!deferred_) return drain_locked(stream);
  while (random_() % 3 == 0 && step()) {
  }
}

bool HostQueues::step() {
  std::vector<Stream> able;
  for (const auto& [stream, queue] : queues_) {
    if (!queue.empty() && (queue.front().ready == nullptr || queue.front().ready())) able.push_back(stream);
  }
  if (able.empty()) return false;
  std::deque<Item>& queue = queues_[able[random_() % able.size()]];
  const Item item = std::move(queue.front());
  queue.pop_front();
  item.work();
  return true;
}

void HostQueues::drain_locked(Stream stream) {
  while (!queues_[stream].empty()) {
    if (!step()) throw Error("host device: every stream waits for another");
  }
}

void HostQueues::drain(Stream stream) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  drain_locked(stream);
}

void HostQueues::run_until(const Ready& done) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  while (!done()) {
    if (!step()) throw Error("host device: waited for what no stream will do");
  }
}

bool HostQueues::poll(const Ready& done) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (!done() && random_() % 2 == 0) step();
  return done();
}

Stream HostQueues::make_stream() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return next_++;
}

void HostQueues::forget(Stream stream) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  drain_locked(stream);
  queues_.erase(stream);
}

std::vector<int64_t> HostQueues::draw_order(int64_t items) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const int64_t most = std::clamp<int64_t>(items, 1, kMaxGroups);
  std::vector<int64_t> order(1 + random_() % static_cast<uint64_t>(most));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

void HostEvent::record(Stream stream) {
  const uint64_t point = ++recorded_;
  queues_->push(stream, [reached = reached_, point] {
    if (point > reached->point) *reached = {point, std::chrono::steady_clock::now()};
  });
}

void HostEvent::wait(Stream stream) {
  queues_->push(stream, [] {}, [reached = reached_, point = recorded_] { return reached->point >= point; });
}

bool HostEvent::done() {
  return queues_->poll([this] { return reached_->point >= recorded_; });
}

void HostEvent::synchronize() {
  queues_->run_until([this] { return reached_->point >= recorded_; });
}

double HostEvent::seconds_since(const Event& earlier) const {
  const Reached& before = *static_cast<const HostEvent&>(earlier).reached_;
  return std::chrono::duration<double>(reached_->at - before.at).count();
}

}  // namespace cpr::cuda
