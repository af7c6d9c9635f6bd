#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace cpr {

// Memory of one forward, recycled from step to step: fresh megabytes of memory would cost page faults in every step.
struct BatchBuffers {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> bag_of;      // bag over all features
  std::vector<uint32_t> bag_length;  // by bag
  std::vector<float> per_sample_weights;
  std::vector<double> wide_weights;  // per-sample weights of float64 tables
  std::vector<uint32_t> argmax;      // laid out as the output, where a table pools by maximum
  std::vector<int64_t> offsets;      // task by task
  std::vector<uint64_t> partitioned;
};

// Thread-safe.
class BatchPool {
 public:
  std::unique_ptr<BatchBuffers> take();
  void give(std::unique_ptr<BatchBuffers> buffers);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BatchBuffers>> free_;
};

// The validated copy of one forward's ids; the caller may overwrite its own. Used by one thread at a time.
class Batch {
 public:
  // The pool is its collection's: it tells whose batch this is.
  Batch(std::shared_ptr<BatchPool> pool, int64_t num_ids, int64_t batch_size, int64_t features);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  BatchBuffers& buffers() { return *buffers_; }
  const BatchPool* pool() const { return pool_.get(); }
  int64_t num_ids() const { return num_ids_; }
  int64_t batch_size() const { return batch_size_; }

  std::vector<int64_t> feature_begin;  // [features + 1]: first position of a feature
  bool unit_bags = false;              // every bag holds one id
  bool weighted = false;
  bool consumed = false;  // by update
  bool counted = false;   // by gradient: the others of the batch belong to the same step

 private:
  std::shared_ptr<BatchPool> pool_;
  std::unique_ptr<BatchBuffers> buffers_;
  int64_t num_ids_;
  int64_t batch_size_;
};

}  // namespace cpr
