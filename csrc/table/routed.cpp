// Routed: the rows that shards sent, pooled; and the gradients that they get.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/ordered_sum.hpp"
#include "cpu/thread_pool.hpp"
#include "table/finite.hpp"
#include "table/route.hpp"

namespace cpr {

namespace {

constexpr int64_t kIdsWorthAThread = 2048;
constexpr int64_t kMinBagsPerTask = 64;
constexpr int64_t kRowsPerTask = 1024;
constexpr int64_t kFloatsWorthAThread = 1 << 16;

// At least so many floats; what was there is lost.
void grow(HugeBuffer* buffer, int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (buffer->size() < bytes) *buffer = HugeBuffer(bytes + bytes / 8);
}

}  // namespace

std::vector<double> Routed::scratch(int threads) const {
  return std::vector<double>(static_cast<size_t>(threads * (kSumLevels + 1) * router_->max_dim_));
}

void Routed::fill(int64_t number, const float* values, int threads) {
  ShardRows& shard = shards_.at(static_cast<size_t>(number));
  grow(&buffers_->fetched, fetched_begin_.back());
  float* fetched = static_cast<float*>(buffers_->fetched.data());
  threads = static_cast<int>(std::clamp<int64_t>(shard.floats.back() / kFloatsWorthAThread, 1, threads));
  std::vector<const Part*> parts;
  for (const Part& part : parts_) {
    if (part.shard == number) parts.push_back(&part);
  }
  cpu::parallel_for(static_cast<int64_t>(parts.size()), threads, [&](int64_t index, int) {
    const Part& part = *parts[static_cast<size_t>(index)];
    const size_t t = static_cast<size_t>(part.table);
    const int64_t dim = router_->tables_[t].spec.embedding_dim;
    std::copy_n(values + part.floats, (part.last - part.first) * dim, fetched + fetched_begin_[t] + part.first * dim);
  });
  shard.filled = true;
}

void Routed::pool(const float* per_sample_weights, float* out, int threads) {
  for (size_t s = 0; s < shards_.size(); ++s) {
    if (!shards_[s].filled && !shards_[s].rows.empty()) {
      throw std::invalid_argument("pool: expected the rows of all shards, got none of shard " + std::to_string(s));
    }
  }
  const Router& router = *router_;
  const size_t n = static_cast<size_t>(num_ids_);
  const size_t bags = static_cast<size_t>(batch_size_) * router.features_.size();
  RouteBuffers& b = *buffers_;
  b.bag_of.resize(std::max(b.bag_of.size(), n));
  b.bag_length.resize(bags);
  if (router.pools_max_) b.argmax.resize(static_cast<size_t>(batch_size_ * router.output_dim_));
  weighted_ = per_sample_weights != nullptr;
  if (weighted_) b.per_sample_weights.assign(per_sample_weights, per_sample_weights + num_ids_);
  threads = static_cast<int>(std::clamp<int64_t>(num_ids_ / kIdsWorthAThread, 1, threads));
  const int64_t features = router.num_features();
  const int64_t blocks = std::clamp<int64_t>((threads * 16 + features - 1) / std::max<int64_t>(features, 1), 1,
                                             std::max<int64_t>(1, batch_size_ / kMinBagsPerTask));
  std::vector<double> sums = scratch(threads);
  const int64_t sums_per_thread = (kSumLevels + 1) * router.max_dim_;
  cpu::parallel_for(features * blocks, threads, [&](int64_t task, int thread) {
    const int64_t f = task / blocks;
    const int64_t begin = batch_size_ * (task % blocks) / blocks;
    const int64_t end = batch_size_ * (task % blocks + 1) / blocks;
    const size_t t = static_cast<size_t>(router.features_[static_cast<size_t>(f)]);
    const int64_t column = router.feature_column_[static_cast<size_t>(f)];
    cpu::LookupTask work;
    work.table.weight = static_cast<float*>(b.fetched.data()) + fetched_begin_[t];
    work.table.dim = router.tables_[t].spec.embedding_dim;
    work.table.format.dim = work.table.dim;
    work.table.num_rows = unique_[t];
    work.table.pooling = router.tables_[t].spec.pooling;
    work.offsets = b.offsets.data() + f * (batch_size_ + 1) + begin;
    work.per_sample_weights = weighted_ ? b.per_sample_weights.data() : nullptr;
    work.first_bag = f * batch_size_ + begin;
    work.first_row = begin;
    work.bags = end - begin;
    work.out = out + column;
    work.out_stride = router.output_dim_;
    // Then a bag's number is its id's position, and backward needs neither bag_of nor bag_length.
    work.unit_bags = all_unit_bags_;
    work.keys = b.keys.data();
    work.bag_of = b.bag_of.data();
    work.bag_length = b.bag_length.data();
    work.argmax = work.table.pooling == Pooling::kMax ? b.argmax.data() + column : nullptr;
    cpu::kernels().pool(work, sums.data() + thread * sums_per_thread);
  });
  pooled_ = true;
}

void Routed::check_pooled(const char* call) const {
  if (!pooled_) throw std::invalid_argument(std::string(call) + ": expected a batch that was pooled");
}

cpu::UpdateArgs Routed::update_args(int64_t index, const float* grad) {
  const Router& router = *router_;
  const std::vector<int64_t>& features = router.features_of_table_[static_cast<size_t>(index)];
  const TableSpec& spec = router.tables_[static_cast<size_t>(index)].spec;
  RouteBuffers& b = *buffers_;
  cpu::UpdateArgs args;
  args.table.weight = static_cast<float*>(b.fetched.data()) + fetched_begin_[static_cast<size_t>(index)];
  args.table.dim = spec.embedding_dim;
  args.table.format.dim = spec.embedding_dim;
  args.grad = grad;
  args.grad_stride = router.output_dim_;
  args.batch = batch_size_;
  args.feature_column = router.feature_column_.data();
  args.only_feature = features.size() == 1 ? features[0] : -1;
  args.bag_of = all_unit_bags_ ? nullptr : b.bag_of.data();
  args.per_sample_weights = weighted_ ? b.per_sample_weights.data() : nullptr;
  args.bag_length = spec.pooling == Pooling::kMean && !all_unit_bags_ ? b.bag_length.data() : nullptr;
  args.argmax = spec.pooling == Pooling::kMax ? b.argmax.data() : nullptr;
  return args;
}

std::vector<ShardGradient> Routed::gradient(const float* grad, float grad_scale, int threads) {
  check_pooled("gradient");
  threads = static_cast<int>(std::clamp<int64_t>(num_ids_ / kIdsWorthAThread, 1, threads));
  if (!all_finite(grad, batch_size_ * router_->output_dim_, threads)) return {};
  std::vector<ShardGradient> gradients;
  for (const ShardRows& shard : shards_) {
    std::unique_ptr<HugeBuffer> memory = router_->gradients_.take();
    grow(memory.get(), std::max<int64_t>(shard.floats.back(), 1));
    const auto give = [router = router_](HugeBuffer* m) { router->gradients_.give(std::unique_ptr<HugeBuffer>(m)); };
    gradients.push_back({std::shared_ptr<HugeBuffer>(memory.release(), give), shard.floats.back()});
  }
  std::vector<Part> tasks;
  for (const Part& part : parts_) {
    const int64_t dim = router_->tables_[static_cast<size_t>(part.table)].spec.embedding_dim;
    for (int64_t first = part.first; first < part.last; first += kRowsPerTask) {
      const int64_t last = std::min(first + kRowsPerTask, part.last);
      tasks.push_back({part.table, part.shard, first, last, part.floats + (first - part.first) * dim});
    }
  }
  std::vector<cpu::UpdateArgs> args;
  for (int64_t t = 0; t < router_->num_tables(); ++t) {
    args.push_back(update_args(t, grad));
    args.back().grad_scale = grad_scale;
  }
  std::vector<double> sums = scratch(threads);
  const int64_t sums_per_thread = (kSumLevels + 1) * router_->max_dim_;
  cpu::parallel_for(static_cast<int64_t>(tasks.size()), threads, [&](int64_t index, int thread) {
    const Part& part = tasks[static_cast<size_t>(index)];
    const size_t t = static_cast<size_t>(part.table);
    const uint32_t* starts = buffers_->starts.data() + table_begin_[t] + t + part.first;
    float* out = static_cast<float*>(gradients[static_cast<size_t>(part.shard)].memory->data()) + part.floats;
    cpu::kernels().sum_rows(args[t], sorted_[t], starts, part.last - part.first, sums.data() + thread * sums_per_thread,
                            out);
  });
  return gradients;
}

void Routed::weight_grad(const float* grad, float* out, int threads) {
  check_pooled("per_sample_weight_grad");
  std::vector<double> sums = scratch(threads);
  const int64_t sums_per_thread = (kSumLevels + 1) * router_->max_dim_;
  cpu::parallel_for(router_->num_features(), threads, [&](int64_t f, int thread) {
    const cpu::UpdateArgs args = update_args(router_->features_[static_cast<size_t>(f)], grad);
    cpu::kernels().weight_grad(args, {buffers_->keys.data() + feature_begin_[static_cast<size_t>(f)], feature_size(f)},
                               sums.data() + thread * sums_per_thread, out);
  });
}

}  // namespace cpr
