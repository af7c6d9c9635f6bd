#include "table/snapshot.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"

namespace cpr {

namespace {

constexpr int64_t kMinTouchedRows = 1024;
constexpr double kStallLimitSeconds = 60.0;

}  // namespace

Snapshot::Snapshot(std::vector<Part> parts, int64_t step, std::mutex* step_mutex, std::shared_ptr<StagingPool> pool)
    : step_(step), step_mutex_(step_mutex), pool_(std::move(pool)), owner_(getpid()) {
  for (Part& part : parts) {
    TableTask& task = tables_.emplace_back();
    task.part = part;
    task.taken = part.rule.kind != Select::kNone;
  }
}

Snapshot::~Snapshot() {
  discard_.store(true, std::memory_order_release);
  pool_->wake();
  join();
}

void Snapshot::start(bool blocking) {
  for (TableTask& task : tables_) {
    if (task.taken) task.part.table->flip_parity();
  }
  if (blocking) {
    walk(true);
  } else {
    try {
      walker_ = std::make_unique<std::thread>([this] { walk(false); });
    } catch (...) {
      for (TableTask& task : tables_) {
        if (task.taken) task.part.table->flip_parity();
      }
      throw;
    }
  }
}

SelectRule Snapshot::current_rule(const TableTask& task) const {
  SelectRule rule = task.part.rule;
  if (discard_.load(std::memory_order_acquire)) rule.kind = Select::kNone;
  return rule;
}

void Snapshot::reserve(const std::vector<int64_t>& needs) {
  const auto start = std::chrono::steady_clock::now();
  bool waited = false;
  for (size_t t = 0; t < tables_.size(); ++t) {
    TableTask& task = tables_[t];
    const int64_t need = std::min(needs[t], task.part.table->num_rows());
    if (!task.taken || need == 0 || !walking()) continue;
    if (task.touched != nullptr && task.touched->capacity() - task.touched->size() >= need) continue;
    if (task.touched != nullptr) seal(std::move(task.touched));
    const int64_t rows = std::min(std::max(2 * need, kMinTouchedRows), task.part.table->num_rows());
    const int64_t limit = 2 * pool_->max_bytes();
    waited = waited || pool_->bytes_out() + StagingBuffer::bytes_for(task.part.table->dim(), rows) > limit;
    const auto cancelled = [this] { return discard_.load(std::memory_order_acquire); };
    task.touched =
        pool_->acquire(static_cast<int>(t), task.part.table->dim(), rows, limit, kStallLimitSeconds, cancelled);
    if (task.touched == nullptr && !cancelled()) {
      throw StagingFull("update: snapshot staging is full (" + std::to_string(pool_->bytes_out()) + " of at most " +
                        std::to_string(limit) +
                        " bytes) and no reader took a chunk for 60 s; read the snapshot's "
                        "chunks or raise max_staging_bytes");
    }
  }
  if (waited) {
    const std::chrono::duration<double> stalled = std::chrono::steady_clock::now() - start;
    stall_seconds_.store(stall_seconds() + stalled.count(), std::memory_order_relaxed);
  }
}

void Snapshot::attach(int table, TableView* view) const {
  const TableTask& task = tables_[static_cast<size_t>(table)];
  view->walking = task.taken;
  view->rule = current_rule(task);
  if (task.touched != nullptr) {
    view->staging = task.touched->view();
  } else {
    view->rule.kind = Select::kNone;
  }
}

void Snapshot::seal(StagingPtr buffer) {
  if (buffer == nullptr || buffer->size() == 0) return;
  tables_[static_cast<size_t>(buffer->table())].rows_staged.fetch_add(buffer->size(), std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    sealed_.push_back(std::move(buffer));
  }
  queue_changed_.notify_all();
}

void Snapshot::finish_walk() {
  const std::lock_guard<std::mutex> step(*step_mutex_);
  for (TableTask& task : tables_) seal(std::move(task.touched));
  walked_.store(true, std::memory_order_release);
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    status_ = Status::kComplete;
  }
  queue_changed_.notify_all();
}

void Snapshot::fail(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    if (failure_.empty()) failure_ = why;
  }
  discard_.store(true, std::memory_order_release);
  pool_->wake();
  queue_changed_.notify_all();
}

void Snapshot::join() {
  const std::lock_guard<std::mutex> lock(join_mutex_);
  if (walker_ != nullptr && walker_->joinable()) walker_->join();
}

std::string Snapshot::failure() const {
  if (!failure_.empty()) return failure_;
  if (status_ == Status::kAborted) return "the snapshot was aborted";
  return {};
}

bool Snapshot::next_chunk(double timeout_seconds, Chunk* chunk) {
  while (chunks_.empty()) {
    StagingPtr buffer;
    {
      std::unique_lock<std::mutex> lock(queue_mutex_);
      const auto ready = [&] { return !failure().empty() || !sealed_.empty() || status_ != Status::kWalking; };
      if (timeout_seconds < 0) {
        queue_changed_.wait(lock, ready);
      } else if (!queue_changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), ready)) {
        throw Error("next_chunk: no chunk within " + std::to_string(timeout_seconds) + " s");
      }
      if (!failure().empty()) throw Error("next_chunk: " + failure());
      if (sealed_.empty()) return false;
      buffer = std::move(sealed_.front());
      sealed_.pop_front();
    }
    log_buffer(*buffer);
    split(std::move(buffer));
  }
  *chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return true;
}

// Keeps what abort needs, then leaves the counts alone in the words: that is what readers see.
void Snapshot::log_buffer(const StagingBuffer& buffer) {
  TableTask& task = tables_[static_cast<size_t>(buffer.table())];
  const StagingView& v = buffer.view();
  const int64_t offset = task.part.table->spec().row_offset;
  // A priority snapshot leaves the dirty bits in place.
  const uint32_t given = kCountMask | kListedBit | (task.part.rule.clears_dirty ? kDirtyBit : 0);
  for (int64_t i = 0; i < buffer.size(); ++i) {
    if ((v.words[i] & given) != 0) {
      task.log_rows.push_back(v.rows[i] - offset);
      task.log_words.push_back(v.words[i] & given);
    }
    v.words[i] &= kCountMask;
  }
}

// Cuts a buffer into chunks of one shard each; rows staged by the update pass come in any order and are brought into
// shard order first.
void Snapshot::split(StagingPtr buffer) {
  const Part& part = tables_[static_cast<size_t>(buffer->table())].part;
  const int64_t n = buffer->size();
  if (part.shard_rows == 0) {
    chunks_.push_back({std::move(buffer), 0, 0, n});
    return;
  }
  const int64_t offset = part.table->spec().row_offset;
  const auto shard_of = [&](int64_t row) { return (row - offset) / part.shard_rows; };
  const int64_t* rows = buffer->view().rows;
  const auto later = [&](int64_t a, int64_t b) { return shard_of(a) < shard_of(b); };
  if (!std::is_sorted(rows, rows + n, later)) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return later(rows[a], rows[b]); });
    const int64_t dim = buffer->dim();
    StagingPtr sorted = pool_->acquire(buffer->table(), dim, n, INT64_MAX, -1.0, [] { return false; });
    const StagingView& from = buffer->view();
    const StagingView& to = sorted->view();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = order[static_cast<size_t>(i)];
      to.rows[i] = from.rows[j];
      to.state[i] = from.state[j];
      to.words[i] = from.words[j];
      std::copy_n(from.weight + j * dim, dim, to.weight + i * dim);
    }
    sorted->set_size(n);
    buffer = std::move(sorted);
    rows = buffer->view().rows;
  }
  for (int64_t begin = 0; begin < n;) {
    const int64_t shard = shard_of(rows[begin]);
    const int64_t* end = std::partition_point(rows + begin, rows + n, [&](int64_t r) { return shard_of(r) <= shard; });
    chunks_.push_back({buffer, shard, begin, end - rows});
    begin = end - rows;
  }
}

void Snapshot::commit() {
  {
    const std::lock_guard<std::mutex> step(*step_mutex_);
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    if (!failure().empty()) throw Error("commit: " + failure());
    if (status_ == Status::kCommitted) throw std::invalid_argument("commit: the snapshot was committed before");
    if (status_ == Status::kWalking || !sealed_.empty() || !chunks_.empty()) {
      throw std::invalid_argument("commit: expected every chunk to have been read, got a snapshot with more to come");
    }
    status_ = Status::kCommitted;
  }
  join();
  for (TableTask& task : tables_) {
    task.log_rows = {};
    task.log_words = {};
  }
}

void Snapshot::abort() {
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    if (status_ == Status::kCommitted || status_ == Status::kAborted) return;
  }
  discard_.store(true, std::memory_order_release);
  pool_->wake();
  join();
  const std::lock_guard<std::mutex> step(*step_mutex_);
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  if (status_ == Status::kAborted) return;
  for (const StagingPtr& buffer : sealed_) log_buffer(*buffer);
  sealed_.clear();
  chunks_.clear();
  for (TableTask& task : tables_) {
    for (size_t i = 0; i < task.log_rows.size(); ++i) {
      task.part.table->merge_word(task.log_rows[i], task.log_words[i]);
    }
    task.log_rows = {};
    task.log_words = {};
  }
  status_ = Status::kAborted;
}

bool Snapshot::owned_by_this_process() const { return getpid() == owner_; }

bool Snapshot::finished() const {
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  return status_ == Status::kCommitted || status_ == Status::kAborted;
}

Snapshot::Status Snapshot::status() const {
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  return status_;
}

std::vector<int64_t> Snapshot::expected_rows() const {
  std::vector<int64_t> rows;
  for (const TableTask& task : tables_) rows.push_back(task.part.expected_rows);
  return rows;
}

std::vector<int64_t> Snapshot::rows_taken() const {
  std::vector<int64_t> rows;
  for (const TableTask& task : tables_) rows.push_back(task.rows_staged.load(std::memory_order_relaxed));
  return rows;
}

}  // namespace cpr
