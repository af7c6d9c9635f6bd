#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/types.hpp"
#include "cpu/kernels.hpp"
#include "table/lookup_input.hpp"
#include "table/memory.hpp"

namespace cpr {

// Rows [begin, end) of a table, not empty, that one shard holds.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shard = 0;
};

struct RouteTable {
  TableSpec spec;
  std::vector<Piece> pieces;  // ascending; all rows of the table
};

// Memory of one batch, recycled from step to step: fresh megabytes of memory would cost page faults in every step.
struct RouteBuffers {
  std::vector<uint64_t> keys;  // by position; first the rows, then numbers of unique rows
  std::vector<uint64_t> keys_a;
  std::vector<uint64_t> keys_b;
  std::vector<uint32_t> rows;
  std::vector<uint32_t> starts;
  std::vector<int64_t> offsets;  // feature by feature [batch + 1]
  std::vector<uint32_t> bag_of;
  std::vector<uint32_t> bag_length;
  std::vector<uint32_t> argmax;
  std::vector<float> per_sample_weights;
  HugeBuffer fetched;
};

// Thread-safe.
template <typename Item>
class Recycled {
 public:
  std::unique_ptr<Item> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<Item>();
    std::unique_ptr<Item> item = std::move(free_.back());
    free_.pop_back();
    return item;
  }
  void give(std::unique_ptr<Item> item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < kKept) free_.push_back(std::move(item));
  }

 private:
  static constexpr size_t kKept = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Item>> free_;
};

class Routed;

// Brings the ids of a batch to the shards that hold their rows: unique local rows for each, and back.
// Thread-safe: nothing is changed after construction but the memory that is recycled.
class Router : public std::enable_shared_from_this<Router> {
 public:
  // `features`: table of each. The rows of each piece are counted from its begin in 31 bits.
  Router(std::vector<RouteTable> tables, std::vector<int64_t> features, int64_t shards);

  // Checks every id and offset: throws out_of_range or invalid_argument.
  std::shared_ptr<Routed> route(const LookupInput& input);

  int64_t num_tables() const { return static_cast<int64_t>(tables_.size()); }
  int64_t num_features() const { return static_cast<int64_t>(features_.size()); }
  int64_t num_shards() const { return shards_; }
  int64_t output_dim() const { return output_dim_; }
  bool only_sums() const { return only_sums_; }

 private:
  friend class Routed;

  std::vector<RouteTable> tables_;
  std::vector<int64_t> features_;
  std::vector<std::vector<int64_t>> features_of_table_;
  std::vector<int64_t> feature_column_;
  int64_t shards_;
  int64_t output_dim_ = 0;
  int64_t max_dim_ = 0;
  bool pools_max_ = false;
  bool only_sums_ = true;
  Recycled<RouteBuffers> buffers_;
  Recycled<HugeBuffer> gradients_;
};

// Rows of one shard, table after table, and what was asked of them.
struct ShardRows {
  std::vector<int64_t> counts;  // [tables]
  std::vector<int32_t> rows;    // local
  std::vector<uint32_t> multiplicity;
  std::vector<int64_t> floats;  // [tables + 1]: where the values of each table begin, and their number
  bool filled = false;
};

// The summed gradients of one shard's rows; the memory goes back to the router.
struct ShardGradient {
  std::shared_ptr<HugeBuffer> memory;
  int64_t floats = 0;
};

// One routed batch: what to ask of each shard, then its rows, the pooled output, and the gradients of its rows.
// Used by one thread at a time.
class Routed {
 public:
  Routed(std::shared_ptr<Router> router, const LookupInput& input);
  ~Routed();
  Routed(const Routed&) = delete;
  Routed& operator=(const Routed&) = delete;

  int64_t num_ids() const { return num_ids_; }
  int64_t batch_size() const { return batch_size_; }
  const Router& router() const { return *router_; }
  const ShardRows& shard(int64_t number) const { return shards_.at(static_cast<size_t>(number)); }
  // Number of the row among the unique ones of its table, by position.
  std::vector<int32_t> index() const;
  // Whether these are the ids and offsets that were routed.
  bool matches(const LookupInput& input) const;

  // Takes the rows of a shard, in the order in which it was asked; copied.
  void fill(int64_t shard, const float* values, int threads);
  // Pools into out [batch, output_dim]. Throws invalid_argument before all shards were filled.
  void pool(const float* per_sample_weights, float* out, int threads);
  // Of the pooled output; by shard. Empty if the gradient isn't finite.
  std::vector<ShardGradient> gradient(const float* grad, float grad_scale, int threads);
  void weight_grad(const float* grad, float* out, int threads);

 private:
  // Unique rows [first, last) of a table that one shard holds; floats: where they begin among its values.
  struct Part {
    int64_t table = 0;
    int64_t shard = 0;
    int64_t first = 0;
    int64_t last = 0;
    int64_t floats = 0;
  };

  void read(const LookupInput& input, int threads);
  void split(int threads);
  void check_pooled(const char* call) const;
  int64_t feature_size(int64_t feature) const;
  cpu::UpdateArgs update_args(int64_t table, const float* grad);
  std::vector<double> scratch(int threads) const;

  std::shared_ptr<Router> router_;
  std::unique_ptr<RouteBuffers> buffers_;
  int64_t num_ids_;
  int64_t batch_size_;
  std::vector<int64_t> feature_begin_;  // [features + 1]
  std::vector<bool> unit_bags_;         // by feature
  bool all_unit_bags_ = true;
  bool weighted_ = false;
  bool pooled_ = false;
  std::vector<int64_t> table_begin_;     // [tables + 1]: keys of the tables before
  std::vector<const uint64_t*> sorted_;  // by table
  std::vector<int64_t> unique_;          // by table
  std::vector<int64_t> fetched_begin_;   // [tables + 1], floats
  std::vector<Part> parts_;
  std::vector<ShardRows> shards_;
};

}  // namespace cpr
