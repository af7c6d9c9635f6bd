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

template <typename Word>
__attribute__((no_sanitize("thread"), always_inline)) inline int64_t racy_copy_words(const char* from, char* to,
                                                                                     int64_t at, int64_t bytes) {
  for (; at + static_cast<int64_t>(sizeof(Word)) <= bytes; at += static_cast<int64_t>(sizeof(Word))) {
    const Word word = __atomic_load_n(reinterpret_cast<const Word*>(from + at), __ATOMIC_RELAXED);
    __builtin_memcpy(to + at, &word, sizeof word);
  }
  return at;
}

// Reads memory that the update pass may write at the same time. What is read counts only if the row's word is then
// found unchanged (a sequence lock's read side), so the race is harmless and kept from ThreadSanitizer.
__attribute__((no_sanitize("thread"), noinline)) void racy_copy(const void* source, void* target, int64_t bytes) {
  const char* from = static_cast<const char*>(source);
  char* to = static_cast<char*>(target);
  const uintptr_t address = reinterpret_cast<uintptr_t>(from);
  int64_t at = 0;
  if (address % 8 == 0) at = racy_copy_words<uint64_t>(from, to, at, bytes);
  if (address % 4 == 0) at = racy_copy_words<uint32_t>(from, to, at, bytes);
  racy_copy_words<uint16_t>(from, to, at, bytes);
}

// A row that the update pass may write meanwhile, into slot `slot`; not its words.
void racy_stage(const TableView& view, int64_t row, const StagingView& to, int64_t slot) {
  const int64_t bytes = weight_bytes(view.format);
  racy_copy(weight_bytes_of(view, row), to.weight + slot * bytes, bytes);
  float* state = to.state + slot * view.format.state_size;
  for (int a = 0; a < view.num_arrays; ++a) {
    const int64_t columns = view.arrays[a].columns;
    racy_copy(view.arrays[a].data + row * columns, state, columns * static_cast<int64_t>(sizeof(float)));
    state += columns;
  }
  if (view.state_of_row) racy_copy(&meta_of(view, row)->state, state, sizeof(float));
}

// The drift that goes with `word`, if that is still the row's.
float racy_drift(const TableView& view, int64_t row, uint32_t word) {
  if (!view.track_drift || (word & kVoidDriftBit) != 0) return 0.0F;
  float drift = 0.0F;
  racy_copy(drift_cell(view, row), &drift, sizeof drift);
  return drift;
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
  uint32_t* cell = &meta_of(view, row)->word;
  uint32_t word = load_word(cell);
  if (is_settled(view, word)) return true;
  const SelectRule rule = current_rule(tables_[static_cast<size_t>(index)]);
  const float drift = racy_drift(view, row, word);
  const bool taken = is_selected(view, rule, row, word, drift);
  if (taken) {
    if (*buffer != nullptr && (*buffer)->size() == (*buffer)->capacity()) seal(std::move(*buffer));
    if (*buffer == nullptr) {
      *buffer = walk_buffer(index, blocking);
      return false;  // waiting took time: look at the row anew
    }
    const StagingView& to = (*buffer)->view();
    const int64_t slot = (*buffer)->size();
    racy_stage(view, row, to, slot);
    if (view.track_drift) to.drift[slot] = drift;
    to.rows[slot] = row + view.row_offset;
    to.words[slot] = true_word(view, row, word);
  }
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  const uint32_t next = settled_word(rule, word, taken);
  if (!__atomic_compare_exchange_n(cell, &word, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return false;
  if (taken) {
    (*buffer)->set_size((*buffer)->size() + 1);
    if ((word & ~kParityBit) != 0) account(view, word, next, delta);
    if (view.track_drift) account_drift(drift, 0.0F, delta);
  }
  return true;
}

// nullptr if the snapshot was given up meanwhile; current_rule then selects nothing.
StagingPtr Snapshot::walk_buffer(int index, bool blocking) {
  const Part& part = tables_[static_cast<size_t>(index)].part;
  const RowFormat& format = part.table->format();
  const int64_t chunk_bytes = std::min(kMaxChunkBytes, std::max<int64_t>(pool_->max_bytes() / 4, 1));
  const int64_t fitting = std::max(kMinChunkRows, chunk_bytes / StagingBuffer::bytes_for(format, 1024) * 1024);
  const int64_t rows = std::clamp<int64_t>(part.expected_rows + 1, 1, fitting);
  try {
    return pool_->acquire(
        index, format, rows, blocking ? INT64_MAX : pool_->max_bytes(), -1.0,
        [this] { return discard_.load(std::memory_order_acquire); }, [this] { return reader_starves(); });
  } catch (const std::bad_alloc&) {
    fail("no memory for staging");
    return nullptr;
  }
}

}  // namespace cpr
