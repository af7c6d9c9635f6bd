// Rows and trackers of a collection on a device, read and written outside of updates: what table/rows.cpp is. Memory of
// the caller's is the host's; it goes through the scratch memory in blocks, in order of the stream.
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "core/errors.hpp"
#include "table/device_collection.hpp"
#include "table/device_memory.hpp"
#include "table/device_snapshot.hpp"

namespace cpr {

namespace {

using cuda::RowArgs;
using cuda::RowStep;

bool strictly_ascending(const int64_t* rows, int64_t n) {
  return std::adjacent_find(rows, rows + n, std::greater_equal<>()) == rows + n;
}

// Of rows that come twice the last counts: its items, in order.
std::vector<int64_t> last_items(const int64_t* rows, int64_t n) {
  std::unordered_map<int64_t, int64_t> last;
  for (int64_t i = 0; i < n; ++i) last[rows[i]] = i;
  std::vector<int64_t> items;
  for (int64_t i = 0; i < n; ++i) {
    if (last.at(rows[i]) == i) items.push_back(i);
  }
  return items;
}

}  // namespace

int64_t DeviceCollection::snapshot_bytes(int64_t max_staging_bytes) const {
  return DeviceStaging::bytes(device_.get(), tables_, max_staging_bytes);
}

void DeviceCollection::bind_snapshot(void* memory, int64_t max_staging_bytes, std::shared_ptr<void> owner,
                                     cuda::Stream stream) {
  check_owner("bind_snapshot");
  const std::unique_lock<std::mutex> lock = lock_idle("bind_snapshot");
  staging_ =
      std::make_unique<DeviceStaging>(device_.get(), tables_, max_staging_bytes, memory, std::move(owner), stream);
  pool_ = std::make_shared<StagingPool>(max_staging_bytes);
}

void DeviceCollection::check_rows(int64_t index, const int64_t* rows, int64_t n) const {
  const TableSpec& of = spec(index);
  for (int64_t i = 0; i < n; ++i) {
    if (rows[i] >= of.row_offset && rows[i] < of.row_offset + of.num_embeddings) continue;
    throw std::out_of_range("rows: expected " + std::to_string(of.row_offset) + " <= row < " +
                            std::to_string(of.row_offset + of.num_embeddings) + " for table '" + of.name + "', got " +
                            std::to_string(rows[i]) + " at position " + std::to_string(i));
  }
}

std::unique_lock<std::mutex> DeviceCollection::lock_idle(const char* call) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (active_ != nullptr && !active_->finished()) {
    throw SnapshotInProgress(std::string(call) + ": expected no snapshot in flight, got one of step " +
                             std::to_string(active_->step()) + "; commit or abort it first");
  }
  return lock;
}

void DeviceCollection::check_scratch(const char* call) const {
  check_ready(call);
  if (staging_ == nullptr) throw Error(std::string(call) + ": expected bind_snapshot before, got no memory");
}

cuda::RowArgs DeviceCollection::row_args(RowStep step, int64_t index) const {
  RowArgs args;
  args.step = step;
  args.table = device_tables() + index;
  return args;
}

// Calls body(first, number, scratch) for blocks of [0, n) whose items of at most `bytes` fit into the scratch memory.
template <typename Body>
void DeviceCollection::for_each_block(int64_t n, int64_t bytes, const Body& body) {
  const int64_t most = std::max<int64_t>(1, (staging_->scratch_bytes - 64) / bytes);
  for (int64_t begin = 0; begin < n; begin += most) {
    Places places(staging_->scratch);
    body(begin, std::min(most, n - begin), &places);
  }
}

// A step of whole rows [begin, end), local, with nothing from the host.
void DeviceCollection::range_step(cuda::RowArgs args, int64_t begin, int64_t end, cuda::Stream stream) {
  args.begin = begin;
  args.n = end - begin;
  device_->rows(args, args.n, stream);
}

// A step that brings a number for each of the items [0, n) to the device.
template <typename T>
void DeviceCollection::write_items(cuda::RowArgs args, T* RowArgs::* member, const T* items, int64_t n,
                                   cuda::Stream stream) {
  for_each_block(n, static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t size, Places* places) {
    args.*member = places->take<T>(size);
    args.begin = begin;
    args.n = size;
    device_->upload(args.*member, items + begin, static_cast<size_t>(size) * sizeof(T), stream);
    device_->rows(args, size, stream);
  });
}

// A step that gives `columns` numbers for each of the items [0, n).
template <typename T>
void DeviceCollection::read_items(cuda::RowArgs args, T* RowArgs::* member, int64_t columns, T* items, int64_t n,
                                  cuda::Stream stream) {
  const int64_t bytes = columns * static_cast<int64_t>(sizeof(T));
  for_each_block(n, bytes, [&](int64_t begin, int64_t size, Places* places) {
    args.*member = places->take<T>(size * columns);
    args.begin = begin;
    args.n = size;
    device_->rows(args, size, stream);
    device_->download(items + begin * columns, args.*member, static_cast<size_t>(size * bytes), stream);
  });
  device_->synchronize(stream);
}

void DeviceCollection::put_items(cuda::RowArgs args, int64_t index, const int64_t* rows, int64_t n, const void* weight,
                                 const float* state, cuda::Stream stream) {
  const TableView& view = tables_.at(static_cast<size_t>(index)).view;
  const int64_t bytes = weight_bytes(view.format);
  const int64_t columns = view.format.state_size;
  const int64_t total = 8 + bytes + columns * static_cast<int64_t>(sizeof(float));
  for_each_block(n, total + 4, [&](int64_t begin, int64_t size, Places* places) {
    std::vector<int64_t> local(rows + begin, rows + begin + size);
    for (int64_t& row : local) row -= view.row_offset;
    auto* to = places->take<int64_t>(size);
    device_->upload(to, local.data(), static_cast<size_t>(size) * sizeof(int64_t), stream);
    args.rows = to;
    args.n = size;
    if (weight != nullptr) {
      args.weight = places->take<char>(size * bytes);
      device_->upload(args.weight, static_cast<const char*>(weight) + begin * bytes, static_cast<size_t>(size * bytes),
                      stream);
    }
    if (state != nullptr) {
      args.state = places->take<float>(size * columns);
      device_->upload(args.state, state + begin * columns, static_cast<size_t>(size * columns) * sizeof(float), stream);
    }
    device_->rows(args, size, stream);
  });
}

void DeviceCollection::write_rows(RowStep step, int64_t index, const int64_t* rows, int64_t n, const void* weight,
                                  const float* state, bool dirty, cuda::Stream stream) {
  RowArgs args = row_args(step, index);
  args.word = dirty && spec(index).track_dirty ? kDirtyBit : 0;
  if (strictly_ascending(rows, n)) return put_items(args, index, rows, n, weight, state, stream);
  const TableView& view = tables_.at(static_cast<size_t>(index)).view;
  const int64_t bytes = weight_bytes(view.format);
  const int64_t columns = view.format.state_size;
  std::vector<int64_t> ids;
  std::vector<char> weights;
  std::vector<float> states;
  for (const int64_t item : last_items(rows, n)) {
    ids.push_back(rows[item]);
    const char* w = static_cast<const char*>(weight) + item * bytes;
    if (weight != nullptr) weights.insert(weights.end(), w, w + bytes);
    if (state != nullptr) states.insert(states.end(), state + item * columns, state + (item + 1) * columns);
  }
  put_items(args, index, ids.data(), static_cast<int64_t>(ids.size()), weight == nullptr ? nullptr : weights.data(),
            state == nullptr ? nullptr : states.data(), stream);
}

std::unique_lock<std::mutex> DeviceCollection::hold_rows(const char* call) {
  check_scratch(call);
  return lock_idle(call);
}

void DeviceCollection::load_rows(int64_t index, const int64_t* rows, int64_t n, const void* weight, const float* state,
                                 bool dirty, cuda::Stream stream) {
  check_rows(index, rows, n);
  const std::unique_lock<std::mutex> lock = hold_rows("load_rows");
  write_rows(RowStep::kWrite, index, rows, n, weight, state, dirty, stream);
}

void DeviceCollection::put_rows(int64_t index, const int64_t* rows, int64_t n, const void* weight, const float* state,
                                cuda::Stream stream) {
  check_rows(index, rows, n);
  const std::unique_lock<std::mutex> lock = hold_rows("put_rows");
  write_rows(RowStep::kPut, index, rows, n, weight, state, true, stream);
}

void DeviceCollection::copy_rows(int64_t index, const int64_t* rows, int64_t n, void* weight, float* state,
                                 cuda::Stream stream) {
  check_scratch("copy_rows");
  check_rows(index, rows, n);
  const std::lock_guard<std::mutex> lock(mutex_);
  const TableView& view = tables_.at(static_cast<size_t>(index)).view;
  const int64_t bytes = weight_bytes(view.format);
  const int64_t columns = view.format.state_size;
  RowArgs args = row_args(RowStep::kRead, index);
  for_each_block(n, 12 + bytes + columns * 4, [&](int64_t begin, int64_t size, Places* places) {
    std::vector<int64_t> local(rows + begin, rows + begin + size);
    for (int64_t& row : local) row -= view.row_offset;
    auto* to = places->take<int64_t>(size);
    device_->upload(to, local.data(), static_cast<size_t>(size) * sizeof(int64_t), stream);
    args.rows = to;
    args.n = size;
    args.weight = places->take<char>(size * bytes);
    args.state = state == nullptr ? nullptr : places->take<float>(size * columns);
    device_->rows(args, size, stream);
    device_->download(static_cast<char*>(weight) + begin * bytes, args.weight, static_cast<size_t>(size * bytes),
                      stream);
    if (state == nullptr) return;
    device_->download(state + begin * columns, args.state, static_cast<size_t>(size * columns) * sizeof(float), stream);
  });
  device_->synchronize(stream);
}

void DeviceCollection::read_row_state(int64_t index, float* state, cuda::Stream stream) {
  check_scratch("state");
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t columns = tables_.at(static_cast<size_t>(index)).view.format.state_size;
  read_items(row_args(RowStep::kReadState, index), &RowArgs::state, columns, state, spec(index).num_embeddings, stream);
}

void DeviceCollection::reset_rows(int64_t index, int64_t begin, int64_t end, cuda::Stream stream) {
  check_scratch("reset_rows");
  const std::unique_lock<std::mutex> lock = lock_idle("reset_rows");
  RowArgs args = row_args(spec(index).external ? RowStep::kKeep : RowStep::kReset, index);
  args.word = kDirtyBit;
  args.low = spec(index).init_min;
  args.high = spec(index).init_max;
  args.initial_state = optimizer_.initial_state;
  range_step(args, begin - spec(index).row_offset, end - spec(index).row_offset, stream);
}

void DeviceCollection::discard_rows(int64_t index, int64_t begin, int64_t end, cuda::Stream stream) {
  check_scratch("discard_rows");
  const std::unique_lock<std::mutex> lock = lock_idle("discard_rows");
  range_step(row_args(RowStep::kDiscard, index), begin - spec(index).row_offset, end - spec(index).row_offset, stream);
}

void DeviceCollection::clear_trackers(int64_t index, int64_t begin, int64_t end, bool dirty, cuda::Stream stream) {
  check_scratch("clear_trackers");
  const std::unique_lock<std::mutex> lock = lock_idle("clear_trackers");
  RowArgs args = row_args(RowStep::kKeep, index);
  args.word = dirty ? 0 : kDirtyBit;
  range_step(args, begin - spec(index).row_offset, end - spec(index).row_offset, stream);
}

// Of the rows that are listed in one slot the lowest is, as where they are written one after the other.
void DeviceCollection::set_trackers(int64_t index, const uint32_t* words, cuda::Stream stream) {
  check_scratch("set_trackers");
  const std::unique_lock<std::mutex> lock = lock_idle("set_trackers");
  const cuda::TableRecord& table = tables_.at(static_cast<size_t>(index));
  const int64_t n = table.view.num_rows;
  range_step(row_args(RowStep::kClear, index), 0, n, stream);
  if (table.view.ssu.slots != nullptr) {
    device_->fill(table.view.ssu.slots, 0xFF, static_cast<size_t>(needs(index).slots), stream);
    write_items<uint32_t>(row_args(RowStep::kClaimSlots, index), &RowArgs::words, words, n, stream);
  }
  write_items<uint32_t>(row_args(RowStep::kReplace, index), &RowArgs::words, words, n, stream);
}

void DeviceCollection::read_trackers(int64_t index, uint32_t* words, cuda::Stream stream) {
  check_scratch("trackers");
  const std::lock_guard<std::mutex> lock(mutex_);
  read_items(row_args(RowStep::kReadWords, index), &RowArgs::words, 1, words, spec(index).num_embeddings, stream);
}

void DeviceCollection::set_drift(int64_t index, const float* drift, cuda::Stream stream) {
  check_scratch("set_drift");
  const std::unique_lock<std::mutex> lock = lock_idle("set_drift");
  write_items<float>(row_args(RowStep::kWriteDrifts, index), &RowArgs::drifts, drift, spec(index).num_embeddings,
                     stream);
}

void DeviceCollection::read_drift(int64_t index, float* drift, cuda::Stream stream) {
  check_scratch("drift");
  const std::lock_guard<std::mutex> lock(mutex_);
  read_items(row_args(RowStep::kReadDrifts, index), &RowArgs::drifts, 1, drift, spec(index).num_embeddings, stream);
}

std::vector<int64_t> DeviceCollection::sampled_rows(int64_t index, cuda::Stream stream) {
  check_scratch("sampled_rows");
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t n = needs(index).slots / static_cast<int64_t>(sizeof(uint32_t));
  if (!spec(index).track_ssu) return {};
  std::vector<uint32_t> holders(static_cast<size_t>(n));
  read_items(row_args(cuda::RowStep::kReadListed, index), &cuda::RowArgs::words, 1, holders.data(), n, stream);
  std::vector<int64_t> rows;
  for (const uint32_t holder : holders) {
    if (holder != kEmptySlot) rows.push_back(holder + spec(index).row_offset);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace cpr
