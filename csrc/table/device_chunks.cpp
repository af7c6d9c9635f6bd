// The reader's side of a snapshot on a device: from records in pinned memory to chunks, and what they end in.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "table/device_memory.hpp"
#include "table/device_snapshot.hpp"

namespace cpr {

namespace {

constexpr int kSpins = 200;  // looks before a waiting reader sleeps between them
constexpr auto kNap = std::chrono::microseconds(50);

class Waiting {
 public:
  void pause() {
    if (++looks_ < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace

void DeviceSnapshot::check_failed(const char* call) const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (!failure_.empty()) throw Error(std::string(call) + ": " + failure_);
  if (status_ == Status::kAborted) throw Error(std::string(call) + ": the snapshot was aborted");
}

bool DeviceSnapshot::next_chunk(double timeout_seconds, Chunk* chunk) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(std::max(timeout_seconds, 0.0));
  Waiting waiting;
  for (;;) {
    check_failed("next_chunk");
    bool over = false;
    {
      const std::unique_lock<std::mutex> step(*tables_.step_mutex, std::try_to_lock);
      const std::lock_guard<std::mutex> lock(parts_mutex_);
      for (Part& part : tables_.staging->parts) poll(&part);
      if (step.owns_lock()) go_on();
      over = swept_ && all_free();
    }
    {
      const std::lock_guard<std::mutex> reader(reader_mutex_);
      if (!chunks_.empty() || read_ready(false)) {
        *chunk = std::move(chunks_.front());
        chunks_.pop_front();
        return true;
      }
    }
    if (over) {
      const std::lock_guard<std::mutex> lock(parts_mutex_);
      if (status_ == Status::kWalking) status_ = Status::kComplete;
      return false;
    }
    if (timeout_seconds >= 0 && Clock::now() >= deadline) {
      throw Timeout("next_chunk: no chunk within " + std::to_string(timeout_seconds) + " s");
    }
    waiting.pause();
  }
}

// Makes chunks of a part that has come; false if none has, or if `bounded` and the chunks would be more than the pool's
// bound.
bool DeviceSnapshot::read_ready(bool bounded) {
  Part* ready = nullptr;
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    for (Part& part : tables_.staging->parts) {
      if (part.use == Use::kReady) ready = &part;
    }
  }
  if (ready == nullptr) return false;
  if (bounded && pool_->bytes_out() + static_cast<int64_t>(ready->bytes) > pool_->max_bytes()) return false;
  try {
    read(*ready);
  } catch (const std::bad_alloc&) {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (failure_.empty()) failure_ = "no memory for a chunk";
    throw;
  }
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  ready->use = Use::kFree;
  return true;
}

void DeviceSnapshot::take_all() {
  for (Waiting waiting;; waiting.pause()) {
    const std::lock_guard<std::mutex> reader(reader_mutex_);
    while (read_ready(false)) {
    }
    const std::lock_guard<std::mutex> step(*tables_.step_mutex);
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    for (Part& part : tables_.staging->parts) poll(&part);
    go_on();
    if (!swept_ || !all_free()) continue;
    was_over_at_step_ = true;
    status_ = Status::kComplete;
    return;
  }
}

void DeviceSnapshot::commit() {
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  check_failed("commit");
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (status_ == Status::kCommitted) throw std::invalid_argument("commit: the snapshot was committed before");
  if (status_ == Status::kWalking || !chunks_.empty()) {
    throw std::invalid_argument("commit: expected every chunk to have been read, got a snapshot with more to come");
  }
  await_info();
  status_ = Status::kCommitted;
  logs_.clear();
}

void DeviceSnapshot::abort() {
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    aborting_ = true;  // a step that waits for the reader goes on
  }
  const std::lock_guard<std::mutex> step(*tables_.step_mutex);
  std::unique_lock<std::mutex> lock(parts_mutex_);
  if (status_ == Status::kCommitted || status_ == Status::kAborted) return;
  if (!swept_) {
    launch(cuda::SnapshotStep::kDisarm, args_of(nullptr), static_cast<int64_t>(requests_.size()));
    cuda::SnapshotArgs args = args_of(nullptr);
    args.whole = true;
    count_and_place(args);
    take(args, nullptr);
    swept_ = true;
  }
  await_info();
  seal_open();
  for (Waiting waiting; !all_free(); waiting.pause()) {
    for (Part& part : tables_.staging->parts) {
      poll(&part);
      if (part.use != Use::kReady) continue;
      log_part(part);
      part.use = Use::kFree;
    }
  }
  chunks_.clear();
  merge_logs();
  forget_saved();
  logs_.clear();
  status_ = Status::kAborted;
}

// The memory that they come in is the next snapshot's too.
void DeviceSnapshot::await_info() const {
  std::call_once(info_once_, [this] {
    info_copied_->synchronize();
    step_ = *tables_.staging->begun_after_copied;
    expected_.assign(tables_.staging->expected_copied, tables_.staging->expected_copied + requests_.size());
  });
}

int64_t DeviceSnapshot::step() const {
  await_info();
  return step_;
}

std::vector<int64_t> DeviceSnapshot::expected_rows() const {
  await_info();
  return expected_;
}

std::vector<int64_t> DeviceSnapshot::rows_taken() const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return taken_;
}

}  // namespace cpr
