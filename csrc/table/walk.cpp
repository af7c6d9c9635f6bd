// The snapshot's background walk: visits every row's word once, copies what is pending and was not yet touched.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "core/settle.hpp"
#include "table/snapshot.hpp"

namespace cpr {

namespace {

constexpr int kNice = 5;  // never idle priority: a walk that holds a chunk must get on
constexpr int64_t kMaxChunkBytes = int64_t{64} << 20;
constexpr int64_t kMinChunkRows = 256;
constexpr int64_t kRowsPerFlush = 1 << 20;

// Reads memory that the update pass may write at the same time. What is read counts only if the row's word is then
// found unchanged (a sequence lock's read side), so the race is harmless and kept from ThreadSanitizer.
__attribute__((no_sanitize("thread"), noinline)) void racy_copy(const float* from, float* to, int64_t n) {
  const bool pairs = n % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 8 == 0;
  if (pairs) {
    const uint64_t* wide = reinterpret_cast<const uint64_t*>(from);
    uint64_t* out = reinterpret_cast<uint64_t*>(to);
    for (int64_t i = 0; i < n / 2; ++i) out[i] = __atomic_load_n(wide + i, __ATOMIC_RELAXED);
    return;
  }
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
  uint32_t* out = reinterpret_cast<uint32_t*>(to);
  for (int64_t i = 0; i < n; ++i) out[i] = __atomic_load_n(words + i, __ATOMIC_RELAXED);
}

}  // namespace

void Snapshot::walk(bool blocking) {
  if (!blocking) setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].taken) walk_table(static_cast<int>(t), blocking);
  }
  swept_.store(true, std::memory_order_release);
  queue_changed_.notify_all();
}

void Snapshot::walk_table(int index, bool blocking) {
  Table& table = *tables_[static_cast<size_t>(index)].part.table;
  const TableView view = table.view();
  StagingPtr buffer;
  TrackerDelta delta;
  for (int64_t row = 0; row < table.num_rows(); ++row) {
    while (!walk_row(index, view, row, &buffer, blocking, &delta)) {
    }
    if ((row + 1) % kRowsPerFlush == 0) {
      table.add(delta);
      delta = {};
    }
  }
  table.add(delta);
  seal(std::move(buffer));
}

// True once the row is settled, by the walk or by the update pass.
bool Snapshot::walk_row(int index, const TableView& view, int64_t row, StagingPtr* buffer, bool blocking,
                        TrackerDelta* delta) {
  uint32_t* cell = &view.meta[row].word;
  uint32_t word = load_word(cell);
  if (is_settled(view, word)) return true;
  const SelectRule rule = current_rule(tables_[static_cast<size_t>(index)]);
  const bool taken = is_selected(view, rule, row, word);
  if (taken) {
    if (*buffer != nullptr && (*buffer)->size() == (*buffer)->capacity()) seal(std::move(*buffer));
    if (*buffer == nullptr) {
      *buffer = walk_buffer(index, blocking);
      return false;  // waiting took time: look at the row anew
    }
    const StagingView& to = (*buffer)->view();
    const int64_t slot = (*buffer)->size();
    racy_copy(view.weight + row * view.dim, to.weight + slot * view.dim, view.dim);
    racy_copy(&view.meta[row].state, to.state + slot, 1);
    to.rows[slot] = row + view.row_offset;
    to.words[slot] = true_word(view, row, word);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
  }
  const uint32_t next = settled_word(rule, word, taken);
  if (!__atomic_compare_exchange_n(cell, &word, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return false;
  if (taken) {
    (*buffer)->set_size((*buffer)->size() + 1);
    if ((word & ~kParityBit) != 0) account(view, word, next, delta);
  }
  return true;
}

// nullptr if the snapshot was given up meanwhile; current_rule then selects nothing.
StagingPtr Snapshot::walk_buffer(int index, bool blocking) {
  const Part& part = tables_[static_cast<size_t>(index)].part;
  const int64_t dim = part.table->dim();
  const int64_t chunk_bytes = std::min(kMaxChunkBytes, std::max<int64_t>(pool_->max_bytes() / 4, 1));
  const int64_t fitting = std::max(kMinChunkRows, chunk_bytes / StagingBuffer::bytes_for(dim, 1024) * 1024);
  const int64_t rows = std::clamp<int64_t>(part.expected_rows + 1, 1, fitting);
  try {
    return pool_->acquire(
        index, dim, rows, blocking ? INT64_MAX : pool_->max_bytes(), -1.0,
        [this] { return discard_.load(std::memory_order_acquire); }, [this] { return reader_starves(); });
  } catch (const std::bad_alloc&) {
    fail("no memory for staging");
    return nullptr;
  }
}

}  // namespace cpr
