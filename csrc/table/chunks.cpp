// The snapshot's reader side: handing out sealed buffers as chunks of one table and one shard.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.hpp"
#include "table/snapshot.hpp"

namespace cpr {

namespace {

constexpr auto kSealRetry = std::chrono::microseconds(200);  // between updates, once the walk has seen every row
constexpr auto kPoll = std::chrono::milliseconds(20);        // only against a timeout running out

}  // namespace

// Waits until there is a sealed buffer, the end, or an error. reader_waits_ lets the staging pool exceed its bound
// meanwhile.
void Snapshot::await_sealed(double timeout_seconds, std::unique_lock<std::mutex>* lock) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(std::max(timeout_seconds, 0.0));
  const auto waiting = [this] { return failure().empty() && sealed_.empty() && status_ == Status::kWalking; };
  if (!waiting()) return;
  reader_waits_.store(true);
  lock->unlock();
  pool_->wake();
  lock->lock();
  while (waiting()) {
    if (timeout_seconds >= 0 && Clock::now() >= deadline) {
      reader_waits_.store(false);
      throw Timeout("next_chunk: no chunk within " + std::to_string(timeout_seconds) + " s");
    }
    const bool swept = swept_.load(std::memory_order_acquire);
    queue_changed_.wait_for(*lock, swept ? kSealRetry : kPoll);
    if (!swept) continue;
    lock->unlock();
    try_complete();
    lock->lock();
  }
  reader_waits_.store(false);
}

bool Snapshot::next_chunk(double timeout_seconds, Chunk* chunk) {
  bool more = false;
  {
    const std::lock_guard<std::mutex> reader(reader_mutex_);
    more = !chunks_.empty();
  }
  if (!more) {
    std::unique_lock<std::mutex> lock(queue_mutex_);
    await_sealed(timeout_seconds, &lock);
  }
  const std::lock_guard<std::mutex> reader(reader_mutex_);
  StagingPtr buffer;
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    if (!failure().empty()) throw Error("next_chunk: " + failure());
    if (chunks_.empty()) {
      if (sealed_.empty()) return false;
      buffer = sealed_.front();
    }
  }
  if (buffer != nullptr) {
    try {
      log_buffer(*buffer);
      {
        const std::lock_guard<std::mutex> lock(queue_mutex_);
        sealed_.pop_front();
        num_sealed_.fetch_sub(1, std::memory_order_release);
      }
      const Part& part = tables_[static_cast<size_t>(buffer->table())].part;
      split_by_shard(std::move(buffer), part.shards, part.table->spec().row_offset, pool_.get(), &chunks_);
    } catch (const std::bad_alloc&) {
      fail("no memory for a chunk");
      throw;
    }
  }
  *chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return true;
}

// Keeps what abort needs, all of the buffer or nothing, then leaves the counts alone in the words: that is what readers
// see.
void Snapshot::log_buffer(const StagingBuffer& buffer) {
  TableTask& task = tables_[static_cast<size_t>(buffer.table())];
  const StagingView& v = buffer.view();
  const int64_t n = buffer.size();
  const int64_t offset = task.part.table->spec().row_offset;
  // A priority snapshot leaves the dirty bits in place.
  const uint32_t given = kCountMask | kListedBit | (task.part.rule.clears_dirty ? kDirtyBit : 0);
  const bool saved = task.part.table->saved() != nullptr;
  const auto held = [&](int64_t i) {
    return saved || (v.words[i] & given) != 0 || (buffer.format().drift && v.drift[i] != 0.0F);
  };
  size_t size = task.log_rows.size();
  for (int64_t i = 0; i < n; ++i) size += held(i) ? 1 : 0;
  if (size > task.log_rows.capacity()) task.log_rows.reserve(std::max(size, 2 * task.log_rows.capacity()));
  if (size > task.log_words.capacity()) task.log_words.reserve(std::max(size, 2 * task.log_words.capacity()));
  if (buffer.format().drift && size > task.log_drifts.capacity()) {
    task.log_drifts.reserve(std::max(size, 2 * task.log_drifts.capacity()));
  }
  for (int64_t i = 0; i < n; ++i) {
    if (held(i)) {
      task.log_rows.push_back(v.rows[i] - offset);
      task.log_words.push_back(v.words[i] & given);
      if (buffer.format().drift) task.log_drifts.push_back(v.drift[i]);
    }
    v.words[i] &= kCountMask;
  }
  if (saved) task.part.table->save_rows(v, n);
}

void split_by_shard(StagingPtr buffer, const ShardRule& shards, int64_t row_offset, StagingPool* pool,
                    std::deque<Chunk>* chunks) {
  const int64_t n = buffer->size();
  if (shards.rows == 0) {
    chunks->push_back({std::move(buffer), 0, 0, n});
    return;
  }
  const auto shard_of = [&](int64_t row) { return shards.of(row - row_offset); };
  const int64_t* rows = buffer->view().rows;
  const auto later = [&](int64_t a, int64_t b) { return shard_of(a) < shard_of(b); };
  if (!std::is_sorted(rows, rows + n, later)) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return later(rows[a], rows[b]); });
    const RowFormat& format = buffer->format();
    StagingPtr sorted =
        pool->acquire(buffer->table(), format, n, INT64_MAX, -1.0, [] { return false; }, [] { return false; });
    const StagingView& from = buffer->view();
    const StagingView& to = sorted->view();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = order[static_cast<size_t>(i)];
      to.rows[i] = from.rows[j];
      to.words[i] = from.words[j];
      if (format.drift) to.drift[i] = from.drift[j];
      std::copy_n(from.state + j * format.state_size, format.state_size, to.state + i * format.state_size);
      std::copy_n(from.weight + j * weight_bytes(format), weight_bytes(format), to.weight + i * weight_bytes(format));
    }
    sorted->set_size(n);
    buffer = std::move(sorted);
    rows = buffer->view().rows;
  }
  for (int64_t begin = 0; begin < n;) {
    const int64_t shard = shard_of(rows[begin]);
    const int64_t* end = std::partition_point(rows + begin, rows + n, [&](int64_t r) { return shard_of(r) <= shard; });
    chunks->push_back({buffer, shard, begin, end - rows});
    begin = end - rows;
  }
}

}  // namespace cpr
