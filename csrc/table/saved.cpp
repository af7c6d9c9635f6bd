// A copy of a table's rows as last saved, and how far the rows are from it.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "core/half.hpp"
#include "core/ordered_sum.hpp"
#include "cpu/thread_pool.hpp"
#include "table/collection.hpp"

namespace cpr {

namespace {

constexpr int64_t kRowsPerTask = 1 << 12;

float wide_distance(const double* a, const double* b, int64_t dim) {
  double sum = 0.0;
  for (int64_t d = 0; d < dim; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return static_cast<float>(std::min(std::sqrt(sum), static_cast<double>(FLT_MAX)));
}

// `floats`: room for two rows.
float distance_of(const char* a, const char* b, const RowFormat& format, float* floats) {
  const int64_t dim = format.dim;
  if (format.dtype == DType::kFloat64) {
    return wide_distance(reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b), dim);
  }
  load_floats(a, format.dtype, dim, floats);
  load_floats(b, format.dtype, dim, floats + dim);
  for (int64_t d = 0; d < dim; ++d) floats[d] -= floats[dim + d];
  return std::sqrt(sum_of_squares<0>(floats, dim));
}

}  // namespace

void Table::keep_saved(bool keep) {
  if (!keep) {
    saved_.reset();
  } else {
    if (saved_ == nullptr) saved_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(weight_bytes()));
    refresh_saved(0, num_rows());
  }
}

void Table::refresh_saved(int64_t begin, int64_t end) {
  if (saved_ == nullptr) return;
  const int64_t bytes = cpr::weight_bytes(format_);
  std::copy_n(static_cast<const char*>(weight_) + begin * bytes, (end - begin) * bytes, saved_.get() + begin * bytes);
}

void Table::save_rows(const StagingView& rows, int64_t n) {
  const int64_t bytes = cpr::weight_bytes(format_);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(rows.weight + i * bytes, bytes, saved_.get() + (rows.rows[i] - spec_.row_offset) * bytes);
  }
}

void Table::forget_saved(int64_t row) {
  if (saved_ == nullptr) return;
  const int64_t bytes = cpr::weight_bytes(format_);
  std::fill_n(saved_.get() + row * bytes, bytes, static_cast<char>(0xFF));  // NaN in every type
}

void Collection::keep_saved(int64_t index, bool keep) {
  check_owner("keep_saved");
  check_bound("keep_saved");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("keep_saved");
  table(index).keep_saved(keep);
}

void Collection::refresh_saved(int64_t index, int64_t begin, int64_t end) {
  check_owner("refresh_saved");
  check_bound("refresh_saved");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("refresh_saved");
  Table& t = table(index);
  t.refresh_saved(begin - t.spec().row_offset, end - t.spec().row_offset);
}

void Collection::changes(int64_t index, float* out, int threads) {
  check_bound("changes");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle("changes");
  const TableView view = table(index).view();
  const char* saved = table(index).saved();
  const int64_t bytes = weight_bytes(view.format);
  const int64_t tasks = (view.num_rows + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<float> scratch(static_cast<size_t>(2 * view.dim * threads));
  cpu::parallel_for(tasks, threads, [&](int64_t task, int thread) {
    float* floats = scratch.data() + 2 * view.dim * thread;
    const int64_t end = std::min(view.num_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) {
      const float distance = distance_of(weight_bytes_of(view, row), saved + row * bytes, view.format, floats);
      out[row] = distance < FLT_MAX ? distance : FLT_MAX;  // NaN too
    }
  });
}

}  // namespace cpr
