// Rows that are tracked or changed outside of an update: torch's optimizers, max_norm, writes that were announced.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "core/half.hpp"
#include "core/ordered_sum.hpp"
#include "core/settle.hpp"
#include "table/collection.hpp"

namespace cpr {

namespace {

// A row that a walk may still choose keeps its parity.
void mark_row(const TableView& view, int64_t row, TrackerDelta* delta) {
  uint32_t* cell = &meta_of(view, row)->word;
  uint32_t word = load_word(cell);
  uint32_t next = 0;
  do {
    next = (is_clean(view, word) ? with_parity(view, word) : word) | kDirtyBit;
  } while (!__atomic_compare_exchange_n(cell, &word, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  delta->dirty += (word & kDirtyBit) == 0 ? 1 : 0;
}

// Whether any of `n` items has a bit set: -0.0 counts too, for w - lr * -0.0 makes a weight of -0.0 positive.
template <typename Bits>
bool any_nonzero(const void* values, int64_t n) {
  const Bits* items = static_cast<const Bits*>(values);
  Bits any = 0;
  for (int64_t i = 0; i < n; ++i) any |= items[i];
  return any != 0;
}

bool row_nonzero(const char* row, DType dtype, int64_t dim) {
  if (dtype == DType::kFloat64) return any_nonzero<uint64_t>(row, dim);
  return dtype == DType::kFloat32 ? any_nonzero<uint32_t>(row, dim) : any_nonzero<uint16_t>(row, dim);
}

void load_doubles(const TableView& t, int64_t row, float* floats, double* out) {
  if (t.format.dtype == DType::kFloat64) {
    std::copy_n(static_cast<const double*>(t.weight) + row * t.dim, t.dim, out);
  } else {
    load_floats(weight_bytes_of(t, row), t.format.dtype, t.dim, floats);
    std::copy_n(floats, t.dim, out);
  }
}

double norm_of(const double* x, int64_t n, double p) {
  double sum = 0.0;
  for (int64_t d = 0; d < n; ++d) {
    const double a = std::abs(x[d]);
    if (std::isinf(p)) {
      sum = a > sum || std::isnan(a) ? a : sum;
    } else {
      sum += p == 2.0 ? a * a : p == 1.0 ? a : std::pow(a, p);
    }
  }
  if (std::isinf(p) || p == 1.0) return sum;
  return p == 2.0 ? std::sqrt(sum) : std::pow(sum, 1.0 / p);
}

void scale_row(const TableView& t, int64_t row, double scale, float* floats) {
  if (t.format.dtype == DType::kFloat64) {
    double* w = static_cast<double*>(t.weight) + row * t.dim;
    for (int64_t d = 0; d < t.dim; ++d) w[d] *= scale;
    return;
  }
  load_floats(weight_bytes_of(t, row), t.format.dtype, t.dim, floats);
  for (int64_t d = 0; d < t.dim; ++d) floats[d] *= static_cast<float>(scale);
  store_nearest(floats, t.format.dtype, t.dim, weight_bytes_of(t, row));
}

}  // namespace

void Collection::mark_dirty(int64_t index, const int64_t* global_rows, int64_t n) {
  check_owner("mark_dirty");
  check_rows(index, global_rows, n);
  fail_torn(index);
  const std::lock_guard<std::mutex> lock(mutex_);
  Table& t = table(index);
  if (!t.spec().track_dirty) return;
  const TableView view = t.view();
  TrackerDelta delta;
  for (int64_t i = 0; i < n; ++i) mark_row(view, global_rows[i] - view.row_offset, &delta);
  t.add(delta);
}

int64_t Collection::mark_dirty_nonzero(int64_t index, const void* grad, DType dtype) {
  check_owner("mark_dirty_nonzero");
  fail_torn(index);
  const std::lock_guard<std::mutex> lock(mutex_);
  Table& t = table(index);
  const TableView view = t.view();
  const int64_t bytes = t.dim() * item_size(dtype);
  TrackerDelta delta;
  int64_t changed = 0;
  for (int64_t row = 0; row < t.num_rows(); ++row) {
    if (!row_nonzero(static_cast<const char*>(grad) + row * bytes, dtype, t.dim())) continue;
    ++changed;
    if (t.spec().track_dirty) mark_row(view, row, &delta);
  }
  t.add(delta);
  return changed;
}

std::vector<uint64_t> Collection::read_keys(int64_t index, const void* ids, bool ids_are_64bit, int64_t n,
                                            bool sampled) const {
  const Table& t = *tables_.at(static_cast<size_t>(index));
  std::vector<uint64_t> keys(static_cast<size_t>(n));
  const SampleRule sample{sampled && t.spec().track_ssu, sample_key_, static_cast<uint64_t>(step_), log2_period_};
  const int64_t bad = cpu::kernels().read_ids(ids, ids_are_64bit, 0, n, t.num_rows(), sample, keys.data());
  if (bad >= 0) throw_bad_id(t.spec(), ids, ids_are_64bit, bad);
  return keys;
}

void Collection::track(int64_t index, const void* ids, bool ids_are_64bit, int64_t n) {
  check_owner("track");
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<uint64_t> keys = read_keys(index, ids, ids_are_64bit, n, true);
  if (n == 0) return;
  reserve_staging(index, 2 * n);
  table(index).reserve_deferred(n);
  std::vector<int64_t> rows(keys.size());
  cpu::UpdateArgs args;
  args.table = update_view(index);
  args.table.track_dirty = false;
  args.batch = n;
  args.only_feature = 0;
  const int64_t column = 0;
  args.feature_column = &column;
  args.out_rows = rows.data();
  workspaces_[0].reserve(n, 1, false);
  const cpu::KeySpan span{keys.data(), n};
  TrackerDelta delta;
  cpu::kernels().update(args, &span, 1, &workspaces_[0], &delta);
  enter_sampled({index, {}, n, false}, args, workspaces_[0], &delta);
  table(index).add(delta);
}

int64_t Collection::renormalise(int64_t index, const void* ids, bool ids_are_64bit, int64_t n, double max_norm,
                                double norm_type) {
  check_owner("renormalise");
  check_bound("renormalise");
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<uint64_t> keys = read_keys(index, ids, ids_are_64bit, n, false);
  std::vector<int64_t> rows;
  for (const uint64_t key : keys) rows.push_back(static_cast<int64_t>(key >> 32));
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  reserve_staging(index, static_cast<int64_t>(rows.size()));
  note_rows(index, {{keys.data(), n}});
  const TableView view = update_view(index);
  std::vector<float> floats(static_cast<size_t>(view.dim));
  std::vector<double> values(static_cast<size_t>(view.dim));
  Table& t = table(index);
  TrackerDelta delta;
  int64_t changed = 0;
  for (const int64_t row : rows) {
    load_doubles(view, row, floats.data(), values.data());
    const double norm = norm_of(values.data(), view.dim, norm_type);
    if (!(norm > max_norm)) continue;
    const double scale = max_norm / (norm + 1e-7);
    ++changed;
    settle(view, row, load_word(&meta_of(view, row)->word), &delta);
    scale_row(view, row, scale, floats.data());
    if (view.track_dirty) mark_row(view, row, &delta);
    const double step = norm_of(values.data(), view.dim, 2.0) * (1.0 - scale);
    t.set_drift(row, add_drift(t.drift(row), static_cast<float>(step)), &delta);
  }
  t.add(delta);
  return changed;
}

}  // namespace cpr
