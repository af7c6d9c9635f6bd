#include "table/snapshot.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"
#include "core/giving_way.hpp"

namespace cpr {

namespace {

constexpr int64_t kMinTouchedRows = 1024;
}  // namespace

Snapshot::Snapshot(std::vector<Part> parts, int64_t step, std::mutex* step_mutex, std::shared_ptr<StagingPool> pool,
                   std::function<void()> ended)
    : step_(step), step_mutex_(step_mutex), pool_(std::move(pool)), ended_(std::move(ended)), owner_(getpid()) {
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

std::shared_ptr<Snapshot> Snapshot::resume(std::vector<Part> parts, int64_t step, std::mutex* step_mutex,
                                           std::shared_ptr<StagingPool> pool) {
  auto snapshot = std::make_shared<Snapshot>(std::move(parts), step, step_mutex, std::move(pool));
  snapshot->discard_.store(true);
  snapshot->unwalked_ = true;
  return snapshot;
}

// Kept in the table's book first: a process that finds the bit there walks, whether the parity was flipped or not.
void Snapshot::start(bool blocking, bool walks) {
  for (TableTask& task : tables_) {
    const uint32_t bit = parity_bit_of(task.part.rule.kind);
    if (!task.taken) continue;
    __atomic_store_n(&task.part.table->book().unfinished, bit, __ATOMIC_RELEASE);
    task.part.table->flip_parity(bit);
  }
  if (blocking) {
    walk(true);
    try_complete();
    if (status() == Status::kFailed) {
      abort();
      throw std::bad_alloc();
    }
  } else if (!walks) {
    unwalked_ = true;
  } else {
    try {
      walker_ = std::make_unique<std::thread>([this] { walk(false); });
    } catch (...) {
      for (TableTask& task : tables_) {
        if (!task.taken) continue;
        task.part.table->flip_parity(parity_bit_of(task.part.rule.kind));
        task.part.table->book().unfinished = 0;
      }
      if (ended_) ended_();
      throw;
    }
  }
}

void Snapshot::start_walk() {
  const std::lock_guard<std::mutex> lock(join_mutex_);
  if (!unwalked_) return;
  walker_ = std::make_unique<std::thread>([this, as_caller = gives_way] {
    gives_way = as_caller;
    walk(false);
  });
  unwalked_ = false;
}

SelectRule Snapshot::current_rule(const TableTask& task) const {
  SelectRule rule = task.part.rule;
  if (discard_.load(std::memory_order_acquire)) rule.kind = Select::kNone;
  return rule;
}

void Snapshot::reserve(const std::vector<int64_t>& needs) {
  complete();
  const auto start = std::chrono::steady_clock::now();
  bool waited = false;
  for (size_t t = 0; t < tables_.size(); ++t) {
    TableTask& task = tables_[t];
    const int64_t need = std::min(needs[t], task.part.table->num_rows());
    if (!task.taken || need == 0 || !walking()) continue;
    if (task.part.table->shared()) task.part.table->reserve_log(1, need);
    if (task.touched != nullptr && task.touched->capacity() - task.touched->size() >= need) continue;
    if (task.touched != nullptr) seal(std::move(task.touched));
    const int64_t rows = std::min(std::max(2 * need, kMinTouchedRows), task.part.table->num_rows());
    const int64_t limit = 2 * pool_->max_bytes();
    waited |= pool_->bytes_out() + StagingBuffer::bytes_for(task.part.table->format(), rows) > limit;
    const auto cancelled = [this] { return discard_.load(std::memory_order_acquire); };
    task.touched = pool_->acquire(static_cast<int>(t), task.part.table->format(), rows, limit,
                                  pool_->max_stall_seconds(), cancelled, [this] { return reader_starves(); });
    if (task.touched == nullptr && !cancelled()) {
      throw StagingFull(pool_->full_message(" of at most " + std::to_string(limit) + " bytes"));
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
  if (task.taken) view->parity_bit = parity_bit_of(task.part.rule.kind);
  view->rule = current_rule(task);
  view->log = task.part.table->log(1);
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
    num_sealed_.fetch_add(1, std::memory_order_release);
  }
  queue_changed_.notify_all();
}

// With step_mutex held: no update is between settling a row and copying it.
void Snapshot::complete() {
  if (!swept_.load(std::memory_order_acquire) || !walking()) return;
  for (TableTask& task : tables_) seal(std::move(task.touched));
  walked_.store(true, std::memory_order_release);
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    status_ = Status::kComplete;
  }
  queue_changed_.notify_all();
}

void Snapshot::try_complete() {
  const std::unique_lock<std::mutex> step(*step_mutex_, std::try_to_lock);
  if (step.owns_lock()) complete();
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
  if (std::exchange(unwalked_, false)) walk(true);
}

std::string Snapshot::failure() const {
  if (!failure_.empty()) return failure_;
  if (status_ == Status::kAborted) return "the snapshot was aborted";
  return {};
}

void Snapshot::commit() {
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    if (!failure().empty()) throw Error("commit: " + failure());
    if (status_ == Status::kCommitted) throw std::invalid_argument("commit: the snapshot was committed before");
    if (status_ == Status::kWalking || !sealed_.empty() || !chunks_.empty()) {
      throw std::invalid_argument("commit: expected every chunk to have been read, got a snapshot with more to come");
    }
    if (ended_) ended_();
    status_ = Status::kCommitted;
  }
  join();
  for (TableTask& task : tables_) {
    task.log_rows = {};
    task.log_words = {};
    task.log_drifts = {};
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
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  const std::lock_guard<std::mutex> step(*step_mutex_);
  complete();
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  if (status_ == Status::kAborted) return;
  while (!sealed_.empty()) {  // one by one: an abort that runs out of memory may be repeated
    log_buffer(*sealed_.front());
    sealed_.pop_front();
    num_sealed_.fetch_sub(1, std::memory_order_release);
  }
  chunks_.clear();
  for (TableTask& task : tables_) {
    task.part.table->enter_deferred();
    TrackerDelta delta;
    for (size_t i = 0; i < task.log_rows.size(); ++i) {
      const float drift = task.log_drifts.empty() ? 0.0F : task.log_drifts[i];
      task.part.table->merge_word(task.log_rows[i], task.log_words[i], drift, &delta);
      task.part.table->forget_saved(task.log_rows[i]);
    }
    task.part.table->add(delta);
    task.log_rows = {};
    task.log_words = {};
    task.log_drifts = {};
  }
  if (ended_) ended_();
  status_ = Status::kAborted;
}

bool Snapshot::owned_by_this_process() const { return getpid() == owner_; }

bool Snapshot::finished() const {
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  return status_ == Status::kCommitted || status_ == Status::kAborted;
}

SnapshotReader::Status Snapshot::status() const {
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  const bool open = status_ == Status::kWalking || status_ == Status::kComplete;
  return open && !failure_.empty() ? Status::kFailed : status_;
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
