// Collection::lookup: checks and copies the ids, pools the bags.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/ordered_sum.hpp"
#include "cpu/thread_pool.hpp"
#include "table/collection.hpp"

namespace cpr {

namespace {

constexpr int64_t kIdsWorthAThread = 2048;
constexpr int64_t kMinBagsPerTask = 64;

struct Task {
  int64_t feature = 0;
  int64_t first_bag = 0;  // over all features
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bad_offset = -1;
  int64_t bad_position = -1;
  bool unit_bags = true;
};

// What pooling left out for ranges of one-id bags, needed once other ranges have longer ones.
void fill_unit_bags(const std::vector<Task>& tasks, BatchBuffers* buffers) {
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (!tasks[t].unit_bags) continue;
    const int64_t first = tasks[t].first_bag;
    const int64_t bags = tasks[t].end - tasks[t].begin;
    const int64_t position = buffers->offsets[static_cast<size_t>(first) + t];
    for (int64_t b = 0; b < bags; ++b) {
      buffers->bag_of[static_cast<size_t>(position + b)] = static_cast<uint32_t>(first + b);
      buffers->bag_length[static_cast<size_t>(first + b)] = 1;
    }
  }
}

void copy_weights(const LookupInput& in, bool wide, BatchBuffers* buffers) {
  if (wide) {
    const double* weights = static_cast<const double*>(in.per_sample_weights);
    buffers->wide_weights.assign(weights, weights + in.num_ids);
  } else {
    const float* weights = static_cast<const float*>(in.per_sample_weights);
    buffers->per_sample_weights.assign(weights, weights + in.num_ids);
  }
}

// Each feature's bags in as many ranges as keep the threads evenly busy.
std::vector<Task> plan_tasks(const LookupInput& in, int64_t features, int threads, bool unpooled) {
  const int64_t blocks = std::clamp<int64_t>((threads * 16 + features - 1) / std::max<int64_t>(features, 1), 1,
                                             std::max<int64_t>(1, in.batch_size / kMinBagsPerTask));
  const auto first_bag = [&](int64_t f) { return unpooled ? offset_at(in, f) : f * in.batch_size; };
  std::vector<Task> tasks;
  for (int64_t f = 0; f < features; ++f) {
    const int64_t first = first_bag(f);
    const int64_t size = first_bag(f + 1) - first;
    for (int64_t k = 0; k < blocks; ++k) {
      const int64_t begin = size * k / blocks;
      tasks.push_back({f, first + begin, begin, size * (k + 1) / blocks, -1, -1, true});
    }
  }
  return tasks;
}

}  // namespace

std::shared_ptr<Batch> Collection::lookup(const LookupInput& in) {
  check_bound("lookup");
  const int64_t features = num_features();
  if (in.offsets != nullptr) check_ends(in, features, unpooled_);
  auto batch = std::make_shared<Batch>(batches_, in.num_ids, in.batch_size, features);
  BatchBuffers& buffers = batch->buffers();
  const int threads = static_cast<int>(std::clamp<int64_t>(in.num_ids / kIdsWorthAThread, 1, in.threads));
  LookupInput bounds = in;  // of bags
  if (unpooled_) {
    bounds.offsets = nullptr;
    bounds.ids_per_bag = 1;
  }
  std::vector<Task> tasks = plan_tasks(in, features, threads, unpooled_);
  for (const Task& task : tasks) {
    if (task.begin == 0) batch->feature_begin[static_cast<size_t>(task.feature)] = offset_at(bounds, task.first_bag);
  }
  batch->feature_begin[static_cast<size_t>(features)] = in.num_ids;
  batch->weighted = in.per_sample_weights != nullptr;
  size_buffers(in, tasks.size(), &buffers);

  // Not the workspaces of the update: lookups may run beside each other.
  const int64_t sums_per_thread = (kSumLevels + 1) * max_dim();
  std::vector<double> sums(static_cast<size_t>(threads * sums_per_thread));
  cpu::parallel_for(static_cast<int64_t>(tasks.size()), threads, [&](int64_t index, int thread) {
    Task& task = tasks[static_cast<size_t>(index)];
    int64_t* offsets = buffers.offsets.data() + task.first_bag + index;
    const OffsetsRead read = read_offsets(bounds, task.first_bag, task.end - task.begin, offsets);
    task.bad_offset = read.bad;
    task.unit_bags = read.unit_bags;
    if (read.bad >= 0) return;
    cpu::LookupTask work = lookup_task(in, task.feature, &buffers);
    work.offsets = offsets;
    work.bags = task.end - task.begin;
    work.unit_bags = task.unit_bags;
    work.first_bag = task.first_bag;
    work.first_row = unpooled_ ? task.first_bag : task.begin;
    const SampleRule sample{in.keep && work.table.ssu.slots != nullptr, sample_key_, static_cast<uint64_t>(step_),
                            log2_period_};
    task.bad_position = cpu::kernels().read_ids(in.ids, in.ids_are_64bit, offsets[0], offsets[work.bags],
                                                work.table.num_rows, sample, buffers.keys.data());
    if (task.bad_position < 0 && in.out != nullptr) cpu::kernels().pool(work, sums.data() + thread * sums_per_thread);
  });
  batch->unit_bags = true;
  for (const Task& task : tasks) {
    if (task.bad_offset >= 0) throw_bad_offset(in, task.bad_offset);
    if (task.bad_position >= 0) {
      const int64_t index = features_[static_cast<size_t>(task.feature)];
      throw_bad_id(tables_[static_cast<size_t>(index)]->spec(), in.ids, in.ids_are_64bit, task.bad_position);
    }
    batch->unit_bags = batch->unit_bags && task.unit_bags;
  }
  if (!batch->unit_bags) fill_unit_bags(tasks, &buffers);
  return batch;
}

void Collection::size_buffers(const LookupInput& in, size_t tasks, BatchBuffers* buffers) const {
  const size_t n = static_cast<size_t>(in.num_ids);
  const size_t bags = unpooled_ ? n : static_cast<size_t>(num_features() * in.batch_size);
  if (buffers->keys.size() < n) buffers->keys.resize(n);
  if (buffers->bag_of.size() < n) buffers->bag_of.resize(n);
  buffers->bag_length.resize(bags);
  buffers->offsets.resize(bags + tasks);
  if (in.per_sample_weights != nullptr) copy_weights(in, wide(), buffers);
  if (pools_max_) buffers->argmax.resize(static_cast<size_t>(in.batch_size * output_dim_));
}

// All but the range of bags.
cpu::LookupTask Collection::lookup_task(const LookupInput& in, int64_t feature, BatchBuffers* buffers) const {
  const int64_t column = feature_column_[static_cast<size_t>(feature)];
  cpu::LookupTask work;
  work.table = tables_[static_cast<size_t>(features_[static_cast<size_t>(feature)])]->view();
  work.per_sample_weights = in.per_sample_weights;
  work.out = static_cast<char*>(in.out) + column * (wide() ? 8 : 4);
  work.out_stride = output_dim_;
  work.keys = buffers->keys.data();
  work.bag_of = buffers->bag_of.data();
  work.bag_length = buffers->bag_length.data();
  work.argmax = work.table.pooling == Pooling::kMax ? buffers->argmax.data() + column : nullptr;
  return work;
}

}  // namespace cpr
