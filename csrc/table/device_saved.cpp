// The copy of rows as last saved, of tables on a device: in memory of the host, fed by the reader of each snapshot.
#include <algorithm>

#include "table/device_collection.hpp"
#include "table/device_snapshot.hpp"
#include "table/distances.hpp"

namespace cpr {

namespace {

constexpr int64_t kBlockBytes = 16 << 20;  // of rows on the host at a time, while they are compared

}  // namespace

void DeviceCollection::keep_saved(int64_t index, bool keep, cuda::Stream stream) {
  check_scratch("keep_saved");
  const std::unique_lock<std::mutex> lock = lock_idle("keep_saved");
  HugeBuffer& saved = saved_.at(static_cast<size_t>(index));
  if (!keep) {
    saved = HugeBuffer();
    return;
  }
  if (saved.data() == nullptr) saved = HugeBuffer(static_cast<size_t>(needs(index).weight));
  read_weights(index, 0, spec(index).num_embeddings, saved.data(), stream);
}

void DeviceCollection::refresh_saved(int64_t index, int64_t begin, int64_t end, cuda::Stream stream) {
  check_scratch("refresh_saved");
  const std::unique_lock<std::mutex> lock = lock_idle("refresh_saved");
  char* const saved = static_cast<char*>(saved_.at(static_cast<size_t>(index)).data());
  if (saved == nullptr) return;
  const TableView& view = tables_[static_cast<size_t>(index)].view;
  const int64_t first = begin - view.row_offset;
  read_weights(index, first, end - begin, saved + first * weight_bytes(view.format), stream);
}

// Of `n` rows from the local row `begin` on, to memory of the host; waits for the stream.
void DeviceCollection::read_weights(int64_t index, int64_t begin, int64_t n, void* to, cuda::Stream stream) {
  const TableView& view = tables_[static_cast<size_t>(index)].view;
  const int64_t bytes = weight_bytes(view.format);
  device_->download(to, static_cast<const char*>(view.weight) + begin * bytes, static_cast<size_t>(n * bytes), stream);
  device_->synchronize(stream);
}

bool DeviceCollection::keeps_saved(int64_t index) const {
  return saved_.at(static_cast<size_t>(index)).data() != nullptr;
}

int64_t DeviceCollection::saved_bytes() const {
  int64_t bytes = 0;
  for (int64_t t = 0; t < num_tables(); ++t) bytes += keeps_saved(t) ? needs(t).weight : 0;
  return bytes;
}

void DeviceCollection::changes(int64_t index, cpu::Distance kind, float* out, int threads, cuda::Stream stream) {
  check_scratch("changes");
  const std::unique_lock<std::mutex> lock = lock_idle("changes");
  TableView view = tables_[static_cast<size_t>(index)].view;
  const char* const saved = static_cast<const char*>(saved_[static_cast<size_t>(index)].data());
  const int64_t rows = view.num_rows;
  const int64_t bytes = weight_bytes(view.format);
  const int64_t most = std::clamp<int64_t>(kBlockBytes / bytes, 1, std::max<int64_t>(rows, 1));
  const std::shared_ptr<void> block = device_->pinned(static_cast<size_t>(most * bytes));
  view.weight = block.get();
  for (int64_t begin = 0; begin < rows; begin += most) {
    view.num_rows = std::min(most, rows - begin);
    read_weights(index, begin, view.num_rows, block.get(), stream);
    distances(view, saved + begin * bytes, kind, out + begin, threads);
  }
}

void DeviceSnapshot::save_rows(size_t table, const StagingView& rows, int64_t n) {
  auto* const saved = static_cast<char*>((*tables_.saved)[table].data());
  if (saved == nullptr) return;
  const TableView& view = (*tables_.records)[table].view;
  const int64_t bytes = weight_bytes(view.format);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(rows.weight + i * bytes, bytes, saved + (rows.rows[i] - view.row_offset) * bytes);
  }
  logs_[table].handed = logs_[table].rows.size();
}

void DeviceSnapshot::forget_saved() {
  for (size_t t = 0; t < logs_.size(); ++t) {
    auto* const saved = static_cast<char*>((*tables_.saved)[t].data());
    if (saved == nullptr) continue;
    const int64_t bytes = weight_bytes((*tables_.records)[t].view.format);
    for (size_t i = 0; i < logs_[t].handed; ++i) {
      std::fill_n(saved + logs_[t].rows[i] * bytes, bytes, static_cast<char>(0xFF));  // NaN in every type
    }
  }
}

}  // namespace cpr
