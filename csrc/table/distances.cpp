#include "table/distances.hpp"

#include <algorithm>
#include <vector>

#include "cpu/thread_pool.hpp"

namespace cpr {

namespace {

// Items that a task reads of the rows, and as many of the copy: threads that take turns at short ranges are slower
// together than at long ones, each of pages of its own.
constexpr int64_t kLeastItems = 1 << 15;
constexpr int64_t kMostItems = 1 << 20;
constexpr int64_t kTasksPerThread = 8;

int64_t items_per_task(int64_t items, int threads) {
  return std::clamp(items / (kTasksPerThread * threads), kLeastItems, kMostItems);
}

// body(i) for all of `n` parts of `items` items each.
template <typename Body>
void for_each_part(int64_t n, int64_t items, int threads, const Body& body) {
  const int64_t group = std::max<int64_t>(1, items_per_task(n * items, threads) / items);
  cpu::parallel_for((n + group - 1) / group, threads, [&](int64_t task, int) {
    for (int64_t i = task * group; i < std::min(n, (task + 1) * group); ++i) body(i);
  });
}

cpu::DistanceTask task_of(const TableView& view, const char* saved, cpu::Distance kind, int64_t row, int64_t item) {
  const int64_t bytes = row * weight_bytes(view.format) + item * item_size(view.format.dtype);
  cpu::DistanceTask task;
  task.now = static_cast<const char*>(view.weight) + bytes;
  task.saved = saved + bytes;
  task.dtype = view.format.dtype;
  task.kind = kind;
  task.dim = std::min(view.dim - item, cpu::kDistanceSegment);
  task.room = (view.num_rows - row) * view.dim - item;
  return task;
}

// Rows of several segments: any thread sums any segment, then the sums of a row are added in order.
void long_distances(const TableView& view, const char* saved, cpu::Distance kind, float* out, int threads) {
  const int64_t segments = (view.dim + cpu::kDistanceSegment - 1) / cpu::kDistanceSegment;
  const auto task_at = [&](int64_t i) {
    return task_of(view, saved, kind, i / segments, i % segments * cpu::kDistanceSegment);
  };
  std::vector<double> sums(static_cast<size_t>(2 * view.num_rows * segments));
  std::vector<double> totals(static_cast<size_t>(2 * view.num_rows));
  if (kind == cpu::Distance::kTv) {
    for_each_part(view.num_rows * segments, cpu::kDistanceSegment, threads,
                  [&](int64_t i) { cpu::kernels().distance_totals(task_at(i), sums.data() + 2 * i); });
    for (int64_t i = 0; i < view.num_rows * segments; ++i) {
      for (int64_t side = 0; side < 2; ++side) totals[2 * (i / segments) + side] += sums[2 * i + side];
    }
  }
  for_each_part(view.num_rows * segments, cpu::kDistanceSegment, threads, [&](int64_t i) {
    cpu::kernels().distance_sum(task_at(i), totals.data() + 2 * (i / segments), sums.data() + i);
  });
  for (int64_t row = 0; row < view.num_rows; ++row) {
    double sum = 0.0;
    for (int64_t i = row * segments; i < (row + 1) * segments; ++i) sum += sums[i];
    out[row] = cpu::finish_distance(kind, sum);
  }
}

}  // namespace

void distances(const TableView& view, const char* saved, cpu::Distance kind, float* out, int threads) {
  if (view.dim > cpu::kDistanceSegment) {
    long_distances(view, saved, kind, out, threads);
    return;
  }
  const int64_t rows_per_task = std::max<int64_t>(1, items_per_task(view.num_rows * view.dim, threads) / view.dim);
  cpu::parallel_for((view.num_rows + rows_per_task - 1) / rows_per_task, threads, [&](int64_t i, int) {
    const int64_t first = i * rows_per_task;
    cpu::DistanceTask task = task_of(view, saved, kind, first, 0);
    task.rows = std::min(view.num_rows - first, rows_per_task);
    cpu::kernels().distances(task, out + first);
  });
}

}  // namespace cpr
