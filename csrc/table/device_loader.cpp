#include "table/device_loader.hpp"

#include <algorithm>
#include <cstring>

#include "core/errors.hpp"
#include "table/device_memory.hpp"

namespace cpr {

DeviceLoader::DeviceLoader(DeviceCollection* collection, cuda::Stream stream)
    : collection_(*collection), stream_(stream), lock_(collection->hold_rows("load_rows")) {}

DeviceLoader::~DeviceLoader() {
  try {
    finish();
  } catch (const Error&) {  // who didn't call finish has an error already
  }
}

void DeviceLoader::finish() { collection_.device_->synchronize(stream_); }

void DeviceLoader::write_block(Part* part, cuda::RowArgs args, int64_t table, const int64_t* rows, const void* weight,
                               const float* state) {
  const TableView& view = collection_.tables_.at(static_cast<size_t>(table)).view;
  const auto weight_size = static_cast<size_t>(args.n * weight_bytes(view.format));
  const auto state_size = static_cast<size_t>(args.n * view.format.state_size) * sizeof(float);
  Places here(part->copied);
  Places there(part->records);
  auto* local = here.take<int64_t>(args.n);
  args.rows = there.take<int64_t>(args.n);
  for (int64_t i = 0; i < args.n; ++i) local[i] = rows[i] - view.row_offset;
  std::memcpy(here.take<char>(static_cast<int64_t>(weight_size)), weight, weight_size);
  args.weight = there.take<char>(static_cast<int64_t>(weight_size));
  if (state != nullptr) {
    std::memcpy(here.take<char>(static_cast<int64_t>(state_size)), state, state_size);
    args.state = there.take<float>(args.n * view.format.state_size);
  }
  collection_.device_->copy(part->records, part->copied, static_cast<size_t>(here.bytes()), stream_);
  collection_.device_->rows(args, args.n, stream_);
  part->copied_at->record(stream_);
}

void DeviceLoader::write(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state,
                         bool dirty) {
  const RowFormat& format = collection_.format(table);
  const int64_t bytes = weight_bytes(format);
  const int64_t item = 8 + bytes + format.state_size * static_cast<int64_t>(sizeof(float));
  cuda::RowArgs args = collection_.row_args(cuda::RowStep::kWrite, table);
  args.word = dirty && collection_.spec(table).track_dirty ? kDirtyBit : 0;
  for (int64_t begin = 0; begin < n; begin += args.n) {
    const uint32_t turn = turn_.fetch_add(1, std::memory_order_relaxed) % DeviceStaging::kParts;
    Part& part = collection_.staging_->parts[turn];
    const std::lock_guard<std::mutex> lock(parts_[turn]);
    part.copied_at->synchronize();  // of the rows that were in it before
    args.n = std::min(n - begin, (part.capacity - 48) / item);
    write_block(&part, args, table, rows + begin, static_cast<const char*>(weight) + begin * bytes,
                state == nullptr ? nullptr : state + begin * format.state_size);
  }
}

}  // namespace cpr
