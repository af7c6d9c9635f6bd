#include "table/staging.hpp"

#include <bit>
#include <chrono>
#include <sstream>
#include <utility>

namespace cpr {

namespace {

constexpr size_t kAlign = 64;
constexpr size_t kSmallest = 1 << 14;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

int64_t StagingBuffer::bytes_for(const RowFormat& format, int64_t rows) {
  const size_t n = static_cast<size_t>(rows);
  const size_t states = static_cast<size_t>(format.state_size) + (format.drift ? 1 : 0);
  return static_cast<int64_t>(aligned(n * static_cast<size_t>(weight_bytes(format))) + aligned(n * sizeof(int64_t)) +
                              aligned(n * sizeof(uint32_t)) + aligned(n * states * sizeof(float)));
}

StagingBuffer::StagingBuffer(std::shared_ptr<StagingPool> pool, HugeBuffer memory, int table, const RowFormat& format,
                             int64_t capacity)
    : pool_(std::move(pool)), memory_(std::move(memory)), table_(table), format_(format) {
  const size_t n = static_cast<size_t>(capacity);
  char* p = static_cast<char*>(memory_.data());
  view_.weight = p;
  p += aligned(n * static_cast<size_t>(weight_bytes(format)));
  view_.rows = reinterpret_cast<int64_t*>(p);
  p += aligned(n * sizeof(int64_t));
  view_.words = reinterpret_cast<uint32_t*>(p);
  p += aligned(n * sizeof(uint32_t));
  view_.state = reinterpret_cast<float*>(p);
  view_.drift = view_.state + n * static_cast<size_t>(format.state_size);
  view_.next = &next_;
  view_.capacity = capacity;
}

StagingBuffer::~StagingBuffer() { pool_->release(std::move(memory_)); }

StagingPtr StagingPool::acquire(int table, const RowFormat& format, int64_t rows, int64_t limit, double timeout_seconds,
                                const std::function<bool()>& cancelled, const std::function<bool()>& starved) {
  const size_t wanted = static_cast<size_t>(StagingBuffer::bytes_for(format, rows));
  const size_t bytes = std::max(kSmallest, wanted >= (size_t{2} << 20) ? wanted : std::bit_ceil(wanted));
  HugeBuffer memory;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] { return cancelled() || out_ + static_cast<int64_t>(bytes) <= limit || starved(); };
    if (timeout_seconds < 0) {
      returned_.wait(lock, ready);
    } else if (!returned_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), ready)) {
      return nullptr;
    }
    if (cancelled()) return nullptr;
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first <= 2 * bytes) {
      memory = std::move(found->second);
      kept_ -= static_cast<int64_t>(found->first);
      free_.erase(found);
    }
    out_ += static_cast<int64_t>(memory.size() > 0 ? memory.size() : bytes);
  }
  if (memory.size() == 0) {
    try {
      memory = HugeBuffer(bytes);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      out_ -= static_cast<int64_t>(bytes);
      throw;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    out_ += static_cast<int64_t>(memory.size()) - static_cast<int64_t>(bytes);
  }
  return std::make_shared<StagingBuffer>(shared_from_this(), std::move(memory), table, format, rows);
}

void StagingPool::release(HugeBuffer memory) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t bytes = static_cast<int64_t>(memory.size());
    out_ -= bytes;
    if (kept_ + bytes <= max_bytes_ / 2) {
      kept_ += bytes;
      free_.emplace(memory.size(), std::move(memory));
    }
  }
  returned_.notify_all();
}

void StagingPool::wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
  }
  returned_.notify_all();
}

int64_t StagingPool::bytes_out() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return out_;
}

std::string StagingPool::full_message(const std::string& limit) const {
  std::ostringstream text;
  text << "update: snapshot staging is full (" << bytes_out() << limit << ") and no reader took a chunk for "
       << max_stall_seconds() << " s; read the snapshot's chunks, or raise max_staging_bytes or max_stall_seconds";
  return text.str();
}

}  // namespace cpr
