#include "table/batch.hpp"

#include <utility>

namespace cpr {

namespace {
constexpr size_t kKept = 4;
}

std::unique_ptr<BatchBuffers> BatchPool::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return std::make_unique<BatchBuffers>();
  std::unique_ptr<BatchBuffers> buffers = std::move(free_.back());
  free_.pop_back();
  return buffers;
}

void BatchPool::give(std::unique_ptr<BatchBuffers> buffers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.size() < kKept) free_.push_back(std::move(buffers));
}

Batch::Batch(std::shared_ptr<BatchPool> pool, int64_t num_ids, int64_t batch_size, int64_t features)
    : feature_begin(static_cast<size_t>(features) + 1),
      pool_(std::move(pool)),
      buffers_(pool_->take()),
      num_ids_(num_ids),
      batch_size_(batch_size) {}

Batch::~Batch() { pool_->give(std::move(buffers_)); }

}  // namespace cpr
