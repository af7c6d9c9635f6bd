#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/views.hpp"
#include "table/memory.hpp"

namespace cpr {

class StagingPool;

// Copies of rows of one table. Returns its memory to the pool when the last reader lets go.
class StagingBuffer {
 public:
  StagingBuffer(std::shared_ptr<StagingPool> pool, HugeBuffer memory, int table, const RowFormat& format,
                int64_t capacity);
  ~StagingBuffer();
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  static int64_t bytes_for(const RowFormat& format, int64_t rows);

  int table() const { return table_; }
  const RowFormat& format() const { return format_; }
  int64_t capacity() const { return view_.capacity; }
  int64_t size() const { return __atomic_load_n(&next_, __ATOMIC_ACQUIRE); }
  void set_size(int64_t size) { __atomic_store_n(&next_, size, __ATOMIC_RELEASE); }
  const StagingView& view() const { return view_; }

 private:
  std::shared_ptr<StagingPool> pool_;
  HugeBuffer memory_;
  int table_;
  RowFormat format_;
  int64_t next_ = 0;
  StagingView view_;
};

using StagingPtr = std::shared_ptr<StagingBuffer>;

// Bounded staging memory, recycled. Thread-safe.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  explicit StagingPool(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Waits while more than `limit` bytes would be out, unless `starved` holds: the reader waits for this very buffer,
  // perhaps with views of older ones in its hands. nullptr once `cancelled` holds or after `timeout_seconds` (negative:
  // no timeout).
  StagingPtr acquire(int table, const RowFormat& format, int64_t rows, int64_t limit, double timeout_seconds,
                     const std::function<bool()>& cancelled, const std::function<bool()>& starved);
  void wake();
  int64_t max_bytes() const { return max_bytes_; }
  int64_t bytes_out() const;

  // How long an update may wait for a reader; finite, at least 0.
  double max_stall_seconds() const { return max_stall_seconds_.load(std::memory_order_relaxed); }
  void set_max_stall_seconds(double seconds) { max_stall_seconds_.store(seconds, std::memory_order_relaxed); }
  // What an update says that has waited so long; `limit`: more about the bytes that are out.
  std::string full_message(const std::string& limit) const;

 private:
  friend class StagingBuffer;
  void release(HugeBuffer memory);

  const int64_t max_bytes_;
  std::atomic<double> max_stall_seconds_{60.0};
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  int64_t out_ = 0;
  int64_t kept_ = 0;
  std::multimap<size_t, HugeBuffer> free_;
};

}  // namespace cpr
