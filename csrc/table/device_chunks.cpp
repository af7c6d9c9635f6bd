// The reader's side of a snapshot on a device: from records in pinned memory to chunks, and what they end in.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "table/device_memory.hpp"
#include "table/device_snapshot.hpp"

namespace cpr {

namespace {

constexpr int kSpins = 200;  // looks before a waiting reader sleeps between them
constexpr auto kNap = std::chrono::microseconds(50);

class Waiting {
 public:
  void pause() {
    if (++looks_ < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }

 private:
  int looks_ = 0;
};

template <typename T>
void make_room(std::vector<T>* items, size_t more) {
  const size_t size = items->size() + more;
  if (size > items->capacity()) items->reserve(std::max(size, 2 * items->capacity()));
}

// body(head, weight, state) for every record of a part.
template <typename Body>
void for_each_record(const std::vector<cuda::TableRecord>& tables, const char* records, uint64_t bytes,
                     const Body& body) {
  for (uint64_t at = 0; at < bytes;) {
    cuda::RecordHead head;
    std::memcpy(&head, records + at, sizeof head);
    const RowFormat& format = tables[head.table].view.format;
    const char* weight = records + at + sizeof head;
    body(head, weight, weight + cuda::rounded_to_16(weight_bytes(format)));
    at += static_cast<uint64_t>(cuda::record_bytes(format));
  }
}

}  // namespace

void DeviceSnapshot::check_failed(const char* call) const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (!failure_.empty()) throw Error(std::string(call) + ": " + failure_);
  if (status_ == Status::kAborted) throw Error(std::string(call) + ": the snapshot was aborted");
}

bool DeviceSnapshot::next_chunk(double timeout_seconds, Chunk* chunk) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(std::max(timeout_seconds, 0.0));
  Waiting waiting;
  for (;;) {
    check_failed("next_chunk");
    bool over = false;
    {
      const std::unique_lock<std::mutex> step(*tables_.step_mutex, std::try_to_lock);
      const std::lock_guard<std::mutex> lock(parts_mutex_);
      for (Part& part : tables_.staging->parts) poll(&part);
      if (step.owns_lock()) go_on();
      over = swept_ && all_free();
    }
    {
      const std::lock_guard<std::mutex> reader(reader_mutex_);
      if (!chunks_.empty() || read_ready(false)) {
        *chunk = std::move(chunks_.front());
        chunks_.pop_front();
        return true;
      }
    }
    if (over) {
      const std::lock_guard<std::mutex> lock(parts_mutex_);
      if (status_ == Status::kWalking) status_ = Status::kComplete;
      return false;
    }
    if (timeout_seconds >= 0 && Clock::now() >= deadline) {
      throw Timeout("next_chunk: no chunk within " + std::to_string(timeout_seconds) + " s");
    }
    waiting.pause();
  }
}

// Makes chunks of a part that has come; false if none has, or if `bounded` and the chunks would be more than the pool's
// bound.
bool DeviceSnapshot::read_ready(bool bounded) {
  Part* ready = nullptr;
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    for (Part& part : tables_.staging->parts) {
      if (part.use == Use::kReady) ready = &part;
    }
  }
  if (ready == nullptr) return false;
  if (bounded && pool_->bytes_out() + static_cast<int64_t>(ready->bytes) > pool_->max_bytes()) return false;
  try {
    read(*ready);
  } catch (const std::bad_alloc&) {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (failure_.empty()) failure_ = "no memory for a chunk";
    throw;
  }
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  ready->use = Use::kFree;
  return true;
}

// Keeps what abort needs, all of the part or nothing, and leaves the counts alone in the words: that is what readers
// see.
void DeviceSnapshot::read(const Part& part) {
  const std::vector<cuda::TableRecord>& tables = *tables_.records;
  std::vector<int64_t> counts(tables.size(), 0);
  for_each_record(tables, part.copied, part.bytes,
                  [&](const cuda::RecordHead& head, const char*, const char*) { ++counts[head.table]; });
  std::vector<StagingPtr> buffers(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    if (counts[t] == 0) continue;
    const auto never = [] { return false; };
    buffers[t] = pool_->acquire(static_cast<int>(t), tables[t].view.format, counts[t], INT64_MAX, -1.0, never, never);
  }
  reserve_logs(counts);
  std::vector<int64_t> sizes(tables.size(), 0);
  for_each_record(tables, part.copied, part.bytes,
                  [&](const cuda::RecordHead& head, const char* weight, const char* state) {
                    const TableView& table = tables[head.table].view;
                    const StagingView& to = buffers[head.table]->view();
                    const int64_t slot = sizes[head.table]++;
                    const auto bytes = static_cast<size_t>(weight_bytes(table.format));
                    const auto columns = static_cast<size_t>(table.format.state_size);
                    std::memcpy(to.weight + static_cast<size_t>(slot) * bytes, weight, bytes);
                    if (columns > 0) {
                      std::memcpy(to.state + static_cast<size_t>(slot) * columns, state, columns * sizeof(float));
                    }
                    to.rows[slot] = head.row + table.row_offset;
                    to.words[slot] = head.word & kCountMask;
                    if (table.track_drift) to.drift[slot] = head.drift;
                    log_record(head);
                  });
  for (size_t t = 0; t < tables.size(); ++t) {
    if (buffers[t] == nullptr) continue;
    buffers[t]->set_size(counts[t]);
    split_by_shard(std::move(buffers[t]), requests_[t].shards, tables[t].view.row_offset, pool_.get(), &chunks_);
  }
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  for (size_t t = 0; t < tables.size(); ++t) taken_[t] += counts[t];
}

void DeviceSnapshot::reserve_logs(const std::vector<int64_t>& counts) {
  for (size_t t = 0; t < logs_.size(); ++t) {
    const auto more = static_cast<size_t>(counts[t]);
    make_room(&logs_[t].rows, more);
    make_room(&logs_[t].words, more);
    if ((*tables_.records)[t].view.track_drift) make_room(&logs_[t].drifts, more);
  }
}

void DeviceSnapshot::log_record(const cuda::RecordHead& head) {
  // A priority snapshot leaves the dirty bits in place.
  const bool clears = requests_[head.table].rule.clears_dirty;
  const uint32_t given = kCountMask | kListedBit | (clears ? kDirtyBit : 0);
  const bool drifts = (*tables_.records)[head.table].view.track_drift;
  if ((head.word & given) == 0 && !(drifts && head.drift != 0.0F)) return;
  Log& log = logs_[head.table];
  log.rows.push_back(head.row);
  log.words.push_back(head.word & given);
  if (drifts) log.drifts.push_back(head.drift);
}

// Through the scratch memory of row operations, in order of the stream.
void DeviceSnapshot::merge_logs() {
  const DeviceStaging& staging = *tables_.staging;
  const int64_t most = staging.scratch_bytes / 16 - 4;
  for (size_t t = 0; t < logs_.size(); ++t) {
    const Log& log = logs_[t];
    const auto n = static_cast<int64_t>(log.rows.size());
    for (int64_t begin = 0; begin < n; begin += most) {
      cuda::RowArgs args;
      args.step = cuda::RowStep::kMerge;
      args.table = tables_.on_device + t;
      args.n = std::min(most, n - begin);
      Places places(staging.scratch);
      auto* rows = places.take<int64_t>(args.n);
      args.words = places.take<uint32_t>(args.n);
      const auto size = static_cast<size_t>(args.n);
      tables_.device->upload(rows, log.rows.data() + begin, size * sizeof(int64_t), stream_);
      tables_.device->upload(args.words, log.words.data() + begin, size * sizeof(uint32_t), stream_);
      if (!log.drifts.empty()) {
        args.drifts = places.take<float>(args.n);
        tables_.device->upload(args.drifts, log.drifts.data() + begin, size * sizeof(float), stream_);
      }
      args.rows = rows;
      tables_.device->rows(args, args.n, stream_);
    }
  }
}

void DeviceSnapshot::take_all() {
  for (Waiting waiting;; waiting.pause()) {
    const std::lock_guard<std::mutex> reader(reader_mutex_);
    while (read_ready(false)) {
    }
    const std::lock_guard<std::mutex> step(*tables_.step_mutex);
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    for (Part& part : tables_.staging->parts) poll(&part);
    go_on();
    if (!swept_ || !all_free()) continue;
    was_over_at_step_ = true;
    status_ = Status::kComplete;
    return;
  }
}

void DeviceSnapshot::commit() {
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  check_failed("commit");
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (status_ == Status::kCommitted) throw std::invalid_argument("commit: the snapshot was committed before");
  if (status_ == Status::kWalking || !chunks_.empty()) {
    throw std::invalid_argument("commit: expected every chunk to have been read, got a snapshot with more to come");
  }
  await_info();
  status_ = Status::kCommitted;
  logs_.clear();
}

void DeviceSnapshot::abort() {
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    aborting_ = true;  // a step that waits for the reader goes on
  }
  const std::lock_guard<std::mutex> step(*tables_.step_mutex);
  std::unique_lock<std::mutex> lock(parts_mutex_);
  if (status_ == Status::kCommitted || status_ == Status::kAborted) return;
  if (!swept_) {
    launch(cuda::SnapshotStep::kDisarm, args_of(nullptr), static_cast<int64_t>(requests_.size()));
    count_and_place(args_of(nullptr));
    take(args_of(nullptr), nullptr);
    swept_ = true;
  }
  await_info();
  seal_open();
  for (Waiting waiting; !all_free(); waiting.pause()) {
    for (Part& part : tables_.staging->parts) {
      poll(&part);
      if (part.use != Use::kReady) continue;
      reserve_logs(std::vector<int64_t>(logs_.size(), static_cast<int64_t>(part.bytes / sizeof(cuda::RecordHead))));
      for_each_record(*tables_.records, part.copied, part.bytes,
                      [&](const cuda::RecordHead& head, const char*, const char*) { log_record(head); });
      part.use = Use::kFree;
    }
  }
  chunks_.clear();
  merge_logs();
  logs_.clear();
  status_ = Status::kAborted;
}

// The memory that they come in is the next snapshot's too.
void DeviceSnapshot::await_info() const {
  std::call_once(info_once_, [this] {
    info_copied_->synchronize();
    step_ = *tables_.staging->step_copied;
    expected_.assign(tables_.staging->expected_copied, tables_.staging->expected_copied + requests_.size());
  });
}

int64_t DeviceSnapshot::step() const {
  await_info();
  return step_;
}

std::vector<int64_t> DeviceSnapshot::expected_rows() const {
  await_info();
  return expected_;
}

std::vector<int64_t> DeviceSnapshot::rows_taken() const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return taken_;
}

}  // namespace cpr
