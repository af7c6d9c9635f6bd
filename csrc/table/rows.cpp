// Rows and trackers of a collection's tables, read and written outside of updates.
#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/half.hpp"
#include "core/settle.hpp"
#include "cpu/thread_pool.hpp"
#include "table/collection.hpp"

namespace cpr {

namespace {

constexpr int64_t kRowsPerTask = 1 << 14;
constexpr int64_t kRowsPerCopy = 1 << 10;
constexpr int64_t kRowsAhead = 8;
constexpr int64_t kBytesAhead = 512;  // of each row

void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < std::min(bytes, kBytesAhead); at += 64) __builtin_prefetch(row + at, 1);
}

// `values` [state_size] to or from where the state of a row lies.
void write_state(const TableView& t, int64_t row, const float* values) {
  for (int a = 0; a < t.num_arrays; ++a) {
    std::copy_n(values, t.arrays[a].columns, t.arrays[a].data + row * t.arrays[a].columns);
    values += t.arrays[a].columns;
  }
  if (t.state_of_row) meta_of(t, row)->state = *values;
}

void read_row_state(const TableView& t, int64_t row, float* values) {
  for (int a = 0; a < t.num_arrays; ++a) {
    std::copy_n(t.arrays[a].data + row * t.arrays[a].columns, t.arrays[a].columns, values);
    values += t.arrays[a].columns;
  }
  if (t.state_of_row) *values = meta_of(t, row)->state;
}

void fill_nan(const TableView& t, int64_t row) {
  char* w = weight_bytes_of(t, row);
  for (int64_t d = 0; d < t.dim; ++d) {
    switch (t.format.dtype) {
      case DType::kFloat64:
        reinterpret_cast<double*>(w)[d] = std::numeric_limits<double>::quiet_NaN();
        break;
      case DType::kFloat32:
        reinterpret_cast<float*>(w)[d] = std::numeric_limits<float>::quiet_NaN();
        break;
      default:  // of both half formats
        reinterpret_cast<uint16_t*>(w)[d] = 0x7fffU;
    }
  }
  for (int a = 0; a < t.num_arrays; ++a) {
    std::fill_n(t.arrays[a].data + row * t.arrays[a].columns, t.arrays[a].columns,
                std::numeric_limits<float>::quiet_NaN());
  }
  if (t.state_of_row) meta_of(t, row)->state = std::numeric_limits<float>::quiet_NaN();
}

bool strictly_ascending(const int64_t* rows, int64_t n) {
  return std::adjacent_find(rows, rows + n, std::greater_equal<>()) == rows + n;
}

}  // namespace

void Collection::load_rows(int64_t index, const int64_t* rows, int64_t n, const void* weight, const float* state,
                           bool dirty, int threads) {
  check_rows(index, rows, n);
  const std::unique_lock<std::mutex> lock = hold_rows();
  const TableView view = table(index).view();
  const int64_t bytes = weight_bytes(view.format);
  const int64_t tasks = (n + kRowsPerTask - 1) / kRowsPerTask;
  if (!strictly_ascending(rows, n)) threads = 1;  // a row may come twice: the last one stays
  cpu::parallel_for(tasks, threads, [&](int64_t task, int) {
    const int64_t at = task * kRowsPerTask;
    write_rows(index, rows + at, std::min(n - at, kRowsPerTask), static_cast<const char*>(weight) + at * bytes,
               state == nullptr ? nullptr : state + at * view.format.state_size, dirty);
  });
}

std::unique_lock<std::mutex> Collection::hold_rows() {
  check_bound("load_rows");
  std::unique_lock<std::mutex> lock = lock_idle("load_rows");
  for (const auto& table : tables_) table->enter_deferred();
  return lock;
}

void Collection::write_rows(int64_t index, const int64_t* rows, int64_t n, const void* weight, const float* state,
                            bool dirty) {
  Table& t = table(index);
  const TableView view = t.view();
  const int64_t bytes = weight_bytes(view.format);
  TrackerDelta delta;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) {
      const int64_t ahead = rows[i + kRowsAhead] - view.row_offset;
      __builtin_prefetch(meta_of(view, ahead), 1);
      if (weight != nullptr) prefetch_row(weight_bytes_of(view, ahead), bytes);
    }
    const int64_t row = rows[i] - view.row_offset;
    if (weight != nullptr) {  // else the rows have it already
      __builtin_memcpy(weight_bytes_of(view, row), static_cast<const char*>(weight) + i * bytes,
                       static_cast<size_t>(bytes));
    }
    if (state != nullptr) write_state(view, row, state + i * view.format.state_size);
    t.set_word(row, dirty && view.track_dirty ? kDirtyBit : 0, 0.0F, &delta);
  }
  t.add(delta);
}

void Collection::copy_rows(int64_t index, const int64_t* rows, int64_t n, void* weight, float* state, int threads) {
  check_rows(index, rows, n);
  const std::lock_guard<std::mutex> lock(mutex_);
  const TableView view = table(index).view();
  const int64_t bytes = weight_bytes(view.format);
  cpu::parallel_for((n + kRowsPerCopy - 1) / kRowsPerCopy, threads, [&](int64_t task, int) {
    for (int64_t i = task * kRowsPerCopy; i < std::min(n, (task + 1) * kRowsPerCopy); ++i) {
      const int64_t row = rows[i] - view.row_offset;
      std::memcpy(static_cast<char*>(weight) + i * bytes, weight_bytes_of(view, row), static_cast<size_t>(bytes));
      if (state != nullptr) read_row_state(view, row, state + i * view.format.state_size);
    }
  });
}

void Collection::put_rows(int64_t index, const int64_t* rows, int64_t n, const void* weight, const float* state) {
  check_rows(index, rows, n);
  const std::unique_lock<std::mutex> lock = hold_rows();
  Table& t = table(index);
  const TableView view = t.view();
  const int64_t bytes = weight_bytes(view.format);
  TrackerDelta delta;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = rows[i] - view.row_offset;
    std::memcpy(weight_bytes_of(view, row), static_cast<const char*>(weight) + i * bytes, static_cast<size_t>(bytes));
    if (state != nullptr) write_state(view, row, state + i * view.format.state_size);
    t.set_word(row, t.word(row) | (view.track_dirty ? kDirtyBit : 0), t.drift(row), &delta);
  }
  t.add(delta);
}

void Collection::reset_rows(int64_t index, int64_t begin, int64_t end) {
  const std::unique_lock<std::mutex> lock = lock_idle("reset_rows");
  Table& t = table(index);
  t.enter_deferred();
  t.initialise(begin - t.spec().row_offset, end - t.spec().row_offset);
  TrackerDelta delta;
  for (int64_t row = begin - t.spec().row_offset; row < end - t.spec().row_offset; ++row) {
    t.set_word(row, t.word(row) & kDirtyBit, 0.0F, &delta);
  }
  t.add(delta);
}

void Collection::discard_rows(int64_t index, int64_t begin, int64_t end) {
  check_bound("discard_rows");
  const std::unique_lock<std::mutex> lock = lock_idle("discard_rows");
  const TableView view = table(index).view();
  for (int64_t row = begin - view.row_offset; row < end - view.row_offset; ++row) fill_nan(view, row);
}

void Collection::clear_trackers(int64_t index, int64_t begin, int64_t end, bool dirty) {
  const std::unique_lock<std::mutex> lock = lock_idle("clear_trackers");
  Table& t = table(index);
  t.enter_deferred();
  const uint32_t kept = dirty ? 0 : kDirtyBit;
  TrackerDelta delta;
  for (int64_t row = begin - t.spec().row_offset; row < end - t.spec().row_offset; ++row) {
    t.set_word(row, t.word(row) & kept, 0.0F, &delta);
  }
  t.add(delta);
}

void Collection::set_trackers(int64_t index, const uint32_t* words) {
  const std::unique_lock<std::mutex> lock = lock_idle("set_trackers");
  Table& t = table(index);
  t.enter_deferred();
  TrackerDelta delta;
  for (int64_t row = 0; row < t.num_rows(); ++row) t.set_word(row, 0, t.drift(row), &delta);
  for (int64_t row = 0; row < t.num_rows(); ++row) t.set_word(row, words[row], t.drift(row), &delta);
  t.add(delta);
}

void Collection::read_trackers(int64_t index, uint32_t* words) {
  const std::unique_lock<std::mutex> lock = lock_settled();
  Table& t = table(index);
  t.enter_deferred();
  for (int64_t row = 0; row < t.num_rows(); ++row) words[row] = t.word(row);
}

void Collection::set_drift(int64_t index, const float* drift) {
  const std::unique_lock<std::mutex> lock = lock_idle("set_drift");
  Table& t = table(index);
  TrackerDelta delta;
  for (int64_t row = 0; row < t.num_rows(); ++row) t.set_drift(row, add_drift(drift[row], 0.0F), &delta);
  t.add(delta);
}

void Collection::read_drift(int64_t index, float* drift) {
  const std::unique_lock<std::mutex> lock = lock_settled();
  const Table& t = table(index);
  for (int64_t row = 0; row < t.num_rows(); ++row) drift[row] = t.drift(row);
}

void Collection::read_state(int64_t index, float* state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const TableView view = table(index).view();
  for (int64_t row = 0; row < view.num_rows; ++row) read_row_state(view, row, state + row * view.format.state_size);
}

std::vector<int64_t> Collection::sampled_rows(int64_t index) {
  const std::unique_lock<std::mutex> lock = lock_settled();
  table(index).enter_deferred();
  return table(index).listed_rows();
}

}  // namespace cpr
