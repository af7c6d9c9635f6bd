// A copy of a table's rows as last saved, and how far the rows are from it.
#include <algorithm>

#include "table/collection.hpp"
#include "table/distances.hpp"

namespace cpr {

void Table::keep_saved(bool keep) {
  if (!keep) {
    saved_ = HugeBuffer();
  } else {
    if (saved() == nullptr) saved_ = HugeBuffer(static_cast<size_t>(weight_bytes()));
    refresh_saved(0, num_rows());
  }
}

void Table::refresh_saved(int64_t begin, int64_t end) {
  if (saved() == nullptr) return;
  const int64_t bytes = cpr::weight_bytes(format_);
  std::copy_n(static_cast<const char*>(weight_) + begin * bytes, (end - begin) * bytes,
              static_cast<char*>(saved_.data()) + begin * bytes);
}

void Table::save_rows(const StagingView& rows, int64_t n) {
  const int64_t bytes = cpr::weight_bytes(format_);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(rows.weight + i * bytes, bytes,
                static_cast<char*>(saved_.data()) + (rows.rows[i] - spec_.row_offset) * bytes);
  }
}

void Table::forget_saved(int64_t row) {
  if (saved() == nullptr) return;
  const int64_t bytes = cpr::weight_bytes(format_);
  std::fill_n(static_cast<char*>(saved_.data()) + row * bytes, bytes, static_cast<char>(0xFF));  // NaN in every type
}

void Collection::keep_saved(int64_t index, bool keep) {
  check_bound("keep_saved");
  const std::unique_lock<std::mutex> lock = lock_idle("keep_saved");
  table(index).keep_saved(keep);
}

void Collection::refresh_saved(int64_t index, int64_t begin, int64_t end) {
  check_bound("refresh_saved");
  const std::unique_lock<std::mutex> lock = lock_idle("refresh_saved");
  Table& t = table(index);
  t.refresh_saved(begin - t.spec().row_offset, end - t.spec().row_offset);
}

void Collection::changes(int64_t index, cpu::Distance kind, float* out, int threads) {
  check_bound("changes");
  const std::unique_lock<std::mutex> lock = lock_idle("changes");
  const TableView view = table(index).view();
  const char* saved = table(index).saved();
  distances(view, saved, kind, out, threads);
}

}  // namespace cpr
