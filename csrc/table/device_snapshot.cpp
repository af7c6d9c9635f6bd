// The training side of a snapshot on a device: what it gives to the streams. device_chunks.cpp has the reader's.
#include "table/device_snapshot.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace cpr {

namespace {

constexpr int64_t kGatherParts = 32;  // as cuda/snapshot.inl has them

bool chooses_highest(const SelectRule& rule) {
  return rule.kind == Select::kMostUsed || rule.kind == Select::kMostDrifted;
}

}  // namespace

DeviceSnapshot::DeviceSnapshot(const DeviceTables& tables, std::vector<Request> requests,
                               std::shared_ptr<StagingPool> pool)
    : tables_(tables),
      requests_(std::move(requests)),
      pool_(std::move(pool)),
      owner_(getpid()),
      begun_(tables.device->make_timer()),
      info_filled_(tables.device->make_timer()),
      info_copied_(tables.device->make_event()),
      logs_(requests_.size()),
      taken_(requests_.size(), 0) {}

void DeviceSnapshot::launch(cuda::SnapshotStep step, cuda::SnapshotArgs args, int64_t items) {
  args.step = step;
  tables_.device->snapshot(args, items, stream_);
}

cuda::SnapshotArgs DeviceSnapshot::args_of(const Part* part) const {
  cuda::SnapshotArgs args = tables_.staging->args;
  args.tables = tables_.on_device;
  args.piece = part == nullptr ? tables_.staging->last_piece : part->piece;
  args.piece_records = part == nullptr ? tables_.staging->last_records : part->piece_records;
  if (part != nullptr) {
    args.records = part->records;
    args.capacity = static_cast<uint64_t>(part->capacity);
  }
  return args;
}

void DeviceSnapshot::upload_requests() {
  const DeviceStaging& staging = *tables_.staging;
  std::vector<cuda::TableRequest> requests;
  for (size_t t = 0; t < requests_.size(); ++t) {
    cuda::TableRequest request{requests_[t].rule, requests_[t].quota};
    if (request.rule.kind == Select::kRows) {
      const std::vector<uint8_t>& bits = requests_[t].mask->bits;
      tables_.device->upload(staging.masks[t], bits.data(), bits.size(), stream_);
      request.rule.mask = staging.masks[t];
    }
    requests.push_back(request);
  }
  tables_.device->upload(staging.requests, requests.data(), requests.size() * sizeof(cuda::TableRequest), stream_);
}

// Of the tables from the first to the last that need it.
void DeviceSnapshot::tally() {
  const auto needs = [](const Request& request) { return chooses_highest(request.rule); };
  const auto first = std::find_if(requests_.begin(), requests_.end(), needs);
  if (first == requests_.end()) return;
  const auto last = std::find_if(requests_.rbegin(), requests_.rend(), needs).base();
  cuda::SnapshotArgs args = args_of(nullptr);
  args.first_table = first - requests_.begin();
  args.end_table = last - requests_.begin();
  tables_.device->fill(args.partial, 0, static_cast<size_t>(tables_.staging->partial_bytes), stream_);
  launch(cuda::SnapshotStep::kTally, args, tables_.staging->tiles);
  launch(cuda::SnapshotStep::kReduce, args, args.end_table - args.first_table);
}

void DeviceSnapshot::count_and_place(const cuda::SnapshotArgs& args) {
  const DeviceStaging& staging = *tables_.staging;
  launch(cuda::SnapshotStep::kCount, args, staging.tiles + 1);
  tables_.device->exclusive_scan(args.counts, const_cast<uint32_t*>(args.sums), staging.tiles + 1, staging.seam,
                                 stream_);
  launch(cuda::SnapshotStep::kPlace, args, 1);
}

// `part` nullptr: rows are settled, and none is to be taken.
void DeviceSnapshot::take(const cuda::SnapshotArgs& args, Part* part) {
  launch(cuda::SnapshotStep::kTake, args, tables_.staging->tiles);
  if (part == nullptr) return;
  launch(cuda::SnapshotStep::kGather, args, tables_.staging->tiles * kGatherParts);
  to_side(part);
}

// The part's head follows to the host once the training stream is there.
void DeviceSnapshot::to_side(Part* part) {
  const cuda::Stream side = tables_.staging->side();
  part->filled->record(stream_);
  part->filled->wait(side);
  if (part->walk) {
    // Head and numbers of records lie behind each other, here as there.
    const auto* end = reinterpret_cast<const char*>(part->piece_records + requests_.size());
    const auto* begin = reinterpret_cast<const char*>(part->piece);
    tables_.device->download(part->piece_copied, begin, static_cast<size_t>(end - begin), side);
  } else {
    tables_.device->download(part->sealed_copied, part->sealed, sizeof *part->sealed, side);
  }
  part->copied_at->record(side);
  part->use = Use::kFilling;
}

void DeviceSnapshot::copy_info() {
  const DeviceStaging& staging = *tables_.staging;
  const cuda::Stream side = staging.side();
  info_filled_->record(stream_);
  info_filled_->wait(side);
  const auto* begin = reinterpret_cast<const char*>(staging.args.begun_after);
  const auto* end = reinterpret_cast<const char*>(staging.args.expected + requests_.size());
  tables_.device->download(staging.begun_after_copied, begin, static_cast<size_t>(end - begin), side);
  info_copied_->record(side);
}

// kOpen, or kArm, which opens the first one.
void DeviceSnapshot::open(Part* part, cuda::SnapshotStep step) {
  cuda::SnapshotArgs args = args_of(nullptr);
  args.steps_done = tables_.step;
  args.records = part->records;
  args.capacity = static_cast<uint64_t>(part->capacity);
  launch(step, args, static_cast<int64_t>(requests_.size()));
  part->use = Use::kOpen;
  room_ = args.capacity;
}

void DeviceSnapshot::seal_open() {
  for (Part& part : tables_.staging->parts) {
    if (part.use != Use::kOpen) continue;
    tables_.device->copy(part.sealed, tables_.staging->args.area, sizeof *part.sealed, stream_);
    to_side(&part);
  }
}

void DeviceSnapshot::start(bool walks, cuda::Stream stream) {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  stream_ = stream;
  walks_ = walks;
  begun_->record(stream_);
  upload_requests();
  tally();
  open(&tables_.staging->parts[DeviceStaging::kParts / 2], cuda::SnapshotStep::kArm);
  Part* part = walks ? &tables_.staging->parts[0] : nullptr;
  cuda::SnapshotArgs args = args_of(part);
  args.first = true;
  args.whole = true;
  args.advances = walks;
  count_and_place(args);
  copy_info();
  if (walks) {
    part->begun->record(stream_);
    take(args, part);
  }
}

void DeviceSnapshot::poll(Part* part) {
  if (part->use == Use::kFilling && part->copied_at->done()) {
    if (part->walk) add_stall(part->filled->seconds_since(*part->begun));
    part->bytes =
        part->walk ? part->piece_copied->bytes : std::min(part->sealed_copied->used, part->sealed_copied->lost);
    if (part->walk && part->piece_copied->end == tables_.staging->tiles) swept_ = true;
    if (!part->walk && part->sealed_copied->lost != cuda::TouchedArea().lost && failure_.empty()) {
      failure_ = "updates met more rows than prepare_step made room for; it is to be called before each step";
    }
    if (part->bytes == 0) {
      part->use = Use::kFree;
      return;
    }
    const cuda::Stream side = tables_.staging->side();
    tables_.device->download(part->copied, part->records, part->bytes, side);
    part->copied_at->record(side);
    part->use = Use::kCopying;
  }
  if (part->use == Use::kCopying && part->copied_at->done()) part->use = Use::kReady;
}

// Gives a piece to the stream for every free part; where the walk was over before, it is empty.
void DeviceSnapshot::go_on() {
  if (swept_) return seal_open();
  if (!walks_ || stopped()) return;
  for (Part& part : tables_.staging->parts) {
    if (!part.walk || part.use != Use::kFree) continue;
    const cuda::SnapshotArgs args = args_of(&part);
    part.begun->record(stream_);
    count_and_place(args);
    take(args, &part);
  }
}

bool DeviceSnapshot::all_free() const {
  const auto& parts = tables_.staging->parts;
  return std::all_of(std::begin(parts), std::end(parts), [](const Part& part) { return part.use == Use::kFree; });
}

void DeviceSnapshot::start_walk() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  walks_ = true;  // its first piece is given to the stream by who comes next
}

// Only poll and prepare_step count, with parts_mutex_.
void DeviceSnapshot::add_stall(double seconds) {
  stall_seconds_.store(stall_seconds_.load(std::memory_order_relaxed) + seconds, std::memory_order_relaxed);
}

double DeviceSnapshot::stall_seconds() const {
  const double begin = info_copied_->done() ? info_filled_->seconds_since(*begun_) : 0.0;
  return begin + stall_seconds_.load(std::memory_order_relaxed);
}

bool DeviceSnapshot::finished() const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return status_ == Status::kCommitted || status_ == Status::kAborted;
}

SnapshotReader::Status DeviceSnapshot::status() const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  const bool open = status_ == Status::kWalking || status_ == Status::kComplete;
  return open && !failure_.empty() ? Status::kFailed : status_;
}

bool DeviceSnapshot::owned_by_this_process() const { return getpid() == owner_; }

}  // namespace cpr
