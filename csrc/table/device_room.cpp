// Room for the rows that updates record before a snapshot has met them.
#include <algorithm>
#include <chrono>
#include <thread>

#include "core/errors.hpp"
#include "table/device_snapshot.hpp"
#include "table/layout.hpp"

namespace cpr {

// An update settles each row of its ids once, and may evict as many from the sampled lists.
DeviceSnapshot::Touched DeviceSnapshot::most_touched(int64_t num_ids) const {
  uint64_t largest = 0;
  uint64_t all = 0;
  int64_t slots = 0;
  for (size_t t = 0; t < requests_.size(); ++t) {
    if (requests_[t].rule.kind == Select::kNone) continue;
    const TableView& view = (*tables_.records)[t].view;
    const auto bytes = static_cast<uint64_t>(cuda::record_bytes(view.format));
    largest = std::max(largest, bytes);
    all += bytes * static_cast<uint64_t>(view.num_rows);
    slots += num_slots(view.ssu);
  }
  const uint64_t bytes = static_cast<uint64_t>(num_ids + std::min(num_ids, slots)) * largest;
  return {std::min(all, bytes), bytes >= all};
}

// Ids of a part of an update, whole windows of them: a part of the staging memory has room for a row of each.
int64_t DeviceSnapshot::part_ids() const {
  return touched_capacity() / tables_.staging->largest_record / cuda::kWindowKeys * cuda::kWindowKeys;
}

void DeviceSnapshot::look() {
  for (Part& part : tables_.staging->parts) poll(&part);
  go_on();
}

bool DeviceSnapshot::find_room(uint64_t bytes) {
  if (room_ >= bytes) return true;
  for (Part& part : tables_.staging->parts) {
    if (part.walk || part.use != Use::kFree || static_cast<uint64_t>(part.capacity) < bytes) continue;
    seal_open();
    open(&part, cuda::SnapshotStep::kOpen);
    return true;
  }
  return false;
}

// Promises the room. False if there is none after max_stall_seconds.
bool DeviceSnapshot::await_room(uint64_t bytes, std::unique_lock<std::mutex>* parts_lock) {
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - begun).count(); };
  bool stalled = false;
  bool found = true;
  while (!stopped() && !swept_ && !find_room(bytes)) {
    // More than a part holds: no row may be left to be met.
    if (static_cast<int64_t>(bytes) > touched_capacity()) walks_ = true;
    stalled = true;
    parts_lock->unlock();
    {
      const std::unique_lock<std::mutex> reader(reader_mutex_, std::try_to_lock);
      if (reader.owns_lock()) read_ready(true);
    }
    found = waited() <= pool_->max_stall_seconds();
    std::this_thread::yield();
    parts_lock->lock();
    if (!found) break;
    look();
  }
  if (found && !stopped() && !swept_) room_ -= bytes;
  if (stalled) add_stall(waited());
  return found;
}

std::string DeviceSnapshot::full_message() const { return pool_->full_message(" bytes on the host"); }

int64_t DeviceSnapshot::prepare_step(int64_t num_ids, bool in_parts, cuda::Stream stream) {
  if (tables_.device->capturing(stream)) return num_ids;
  std::unique_lock<std::mutex> lock(parts_mutex_);
  stream_ = stream;
  look();
  was_over_at_step_ = swept_;
  const Touched most = most_touched(num_ids);
  const bool whole = !in_parts || most.every_row || most.bytes <= static_cast<uint64_t>(touched_capacity());
  const int64_t half = cuda::windows_of((num_ids + 1) / 2) * cuda::kWindowKeys;
  const int64_t ids = whole ? num_ids : std::min(half, part_ids());
  if (!await_room(whole ? most.bytes : ids * tables_.staging->largest_record, &lock)) throw StagingFull(full_message());
  return stopped() || swept_ ? num_ids : ids;
}

int64_t DeviceSnapshot::room_within_step(int64_t num_ids) {
  std::unique_lock<std::mutex> lock(parts_mutex_);
  look();
  const int64_t ids = std::min(num_ids, part_ids());
  if (!await_room(static_cast<uint64_t>(ids * tables_.staging->largest_record), &lock)) disarm(full_message());
  return stopped() || swept_ ? num_ids : ids;
}

void DeviceSnapshot::disarm(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  launch(cuda::SnapshotStep::kDisarm, args_of(nullptr), static_cast<int64_t>(requests_.size()));
}

void DeviceSnapshot::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  disarm(why);
}

}  // namespace cpr
