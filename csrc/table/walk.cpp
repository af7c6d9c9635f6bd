// The snapshot's background walk: visits every row's word once, copies what is pending and was not yet touched.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>

#include "core/giving_way.hpp"
#include "core/settle.hpp"
#include "table/snapshot.hpp"

namespace cpr {

namespace {

constexpr int kNice = 10;  // never idle priority: a walk that holds a chunk must get on
constexpr int64_t kMaxChunkBytes = int64_t{16} << 20;
constexpr int64_t kMinChunkRows = 256;  // where they fit into the largest chunk
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kRowsPerFlush = 1 << 20;
constexpr int64_t kScanned = 1 << 14;  // rows at most between looks at whether the snapshot was given up

typedef uint64_t Words __attribute__((vector_size(16), aligned(2), may_alias));

// Stores past the caches where the machine can: staging is read later, by another thread. They count as stored for that
// thread once fence_stores returns.
#ifdef __SSE2__
CPR_INLINE void store_through(char* to, Words value) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
}
CPR_INLINE void fence_stores() { _mm_sfence(); }
#else
CPR_INLINE void store_through(char* to, Words value) { *reinterpret_cast<Words*>(to) = value; }
CPR_INLINE void fence_stores() {}
#endif

// Reads memory that the update pass may write at the same time. What is read counts only if the row's word is then
// found unchanged (a sequence lock's read side), so the race is harmless and kept from ThreadSanitizer.
__attribute__((no_sanitize("thread"), noinline)) void racy_copy(const void* source, void* target, int64_t bytes) {
  const char* from = static_cast<const char*>(source);
  char* to = static_cast<char*>(target);
  int64_t at = 0;
  if (reinterpret_cast<uintptr_t>(target) % 16 == 0) {
    for (; at + 64 <= bytes; at += 64) {
      for (int64_t part = at; part < at + 64; part += 16) {
        store_through(to + part, *reinterpret_cast<const Words*>(from + part));
      }
    }
  }
  for (; at + 16 <= bytes; at += 16) {
    *reinterpret_cast<Words*>(to + at) = *reinterpret_cast<const Words*>(from + at);
  }
  for (; at < bytes; at += 2) {
    *reinterpret_cast<uint16_t*>(to + at) =
        __atomic_load_n(reinterpret_cast<const uint16_t*>(from + at), __ATOMIC_RELAXED);
  }
}

// The same of `n` floats that lie `stride` bytes apart, to every `step`th of target.
__attribute__((no_sanitize("thread"), noinline)) void racy_gather(const void* source, int64_t stride, float* target,
                                                                  int64_t step, int64_t n) {
  const char* from = static_cast<const char*>(source);
  for (int64_t i = 0; i < n; ++i) {
    *reinterpret_cast<uint32_t*>(target + i * step) =
        __atomic_load_n(reinterpret_cast<const uint32_t*>(from + i * stride), __ATOMIC_RELAXED);
  }
}

// The drift that goes with `word`, if that is still the row's.
float racy_drift(const TableView& view, int64_t row, uint32_t word) {
  if (!view.track_drift || (word & kVoidDriftBit) != 0) return 0.0F;
  float drift = 0.0F;
  racy_gather(drift_cell(view, row), 0, &drift, 1, 1);
  return drift;
}

// A row far from the one before, to be copied soon.
void prefetch_row(const TableView& view, int64_t row) {
  const int64_t bytes = std::min(weight_bytes(view.format), kPrefetchBytes);
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(weight_bytes_of(view, row) + byte);
  for (int a = 0; a < view.num_arrays; ++a) {
    const StateArray& array = view.arrays[a];
    const int64_t columns = std::min(array.columns, kPrefetchBytes / 4);
    for (int64_t column = 0; column < columns; column += 16) {
      __builtin_prefetch(array.data + row * array.columns + column);
    }
  }
}

// Weights and state of rows [row, row + n), which the update pass may write meanwhile, into slots from `slot` on.
void racy_stage(const TableView& view, int64_t row, int64_t n, const StagingView& to, int64_t slot) {
  const int64_t bytes = weight_bytes(view.format);
  const int64_t size = view.format.state_size;
  racy_copy(weight_bytes_of(view, row), to.weight + slot * bytes, n * bytes);
  float* state = to.state + slot * size;
  for (int a = 0; a < view.num_arrays; ++a) {
    const int64_t columns = view.arrays[a].columns;
    const int64_t together = columns == size ? n : 1;
    for (int64_t i = 0; i < n; i += together) {
      racy_copy(view.arrays[a].data + (row + i) * columns, state + i * size,
                together * columns * static_cast<int64_t>(sizeof(float)));
    }
    state += columns;
  }
  if (view.state_of_row) racy_gather(&meta_of(view, row)->state, int64_t{1} << view.meta_shift, state, size, n);
}

void move_slot(const RowFormat& format, const StagingView& v, int64_t from, int64_t to) {
  const int64_t bytes = weight_bytes(format);
  std::copy_n(v.weight + from * bytes, bytes, v.weight + to * bytes);
  std::copy_n(v.state + from * format.state_size, format.state_size, v.state + to * format.state_size);
  if (format.drift) v.drift[to] = v.drift[from];
  v.rows[to] = v.rows[from];
  v.words[to] = v.words[from];
}

}  // namespace

void Snapshot::walk(bool blocking) {
  if (!blocking) {
    const id_t self = static_cast<id_t>(syscall(SYS_gettid));
    setpriority(PRIO_PROCESS, self, std::min(getpriority(PRIO_PROCESS, self) + kNice, 19));
  }
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].taken) walk_table(static_cast<int>(t), blocking);
  }
  swept_.store(true, std::memory_order_release);
  queue_changed_.notify_all();
}

void Snapshot::walk_table(int index, bool blocking) {
  Table& table = *tables_[static_cast<size_t>(index)].part.table;
  TableView view = table.view();
  view.parity_bit = parity_bit_of(tables_[static_cast<size_t>(index)].part.rule.kind);
  view.log = table.log(0);
  StagingPtr buffer;
  TrackerDelta delta;
  for (int64_t row = 0; row < table.num_rows(); row += kRowsPerFlush) {
    walk_rows(index, view, row, std::min(row + kRowsPerFlush, table.num_rows()), &buffer, blocking, &delta);
    table.add(delta);
    delta = {};
  }
  seal(std::move(buffer));
  __atomic_store_n(&table.book().unfinished, 0, __ATOMIC_RELEASE);
}

// Settles rows [begin, end) unless the update pass was faster. A block is copied first and then validated row by row: a
// compare-exchange waits for the stores before it, and so only once a block for those of the copies.
void Snapshot::walk_rows(int index, const TableView& view, int64_t begin, int64_t end, StagingPtr* buffer,
                         bool blocking, TrackerDelta* delta) {
  WalkedBlock block;
  GivingWay way;
  for (int64_t row = begin; row < end;) {
    way.worked();
    const SelectRule rule = current_rule(tables_[static_cast<size_t>(index)]);
    const int64_t free = *buffer == nullptr ? 0 : (*buffer)->capacity() - (*buffer)->size();
    block.size = 0;
    const bool full = scan(view, rule, &row, end, free, buffer->get(), &block);
    if (block.size > 0) {
      copy(view, buffer->get(), block.size);
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
      if (view.log != nullptr) {
        log_block(view, tables_[static_cast<size_t>(index)].part.table, **buffer, block);
      }
      const int64_t changed = validate(view, rule, buffer->get(), &block, delta);
      for (int64_t i = 0; i < changed; ++i) {
        walk_rows(index, view, block.rows[i], block.rows[i] + 1, buffer, blocking, delta);
      }
    }
    if (full) {
      if (*buffer != nullptr) seal(std::move(*buffer));
      *buffer = walk_buffer(index, blocking);
    }
  }
}

// Settles rows from *row on that aren't taken, and notes those that are, a block of them at most, behind the end of
// `buffer`. Ends before a row that there is no slot for, and then is true.
bool Snapshot::scan(const TableView& table, const SelectRule& rule, int64_t* row, int64_t end, int64_t free,
                    StagingBuffer* buffer, WalkedBlock* block) {
  const TableView view = table;  // of its own: what is stored to staging can't change it
  const int64_t room = std::min(free, kWalkBlock);
  const int64_t slot = buffer == nullptr ? 0 : buffer->size();
  const StagingView to = buffer == nullptr ? StagingView{} : buffer->view();
  int64_t n = 0;
  int64_t at = *row;
  for (; at < end && at - *row < kScanned; ++at) {
    uint32_t* cell = &meta_of(view, at)->word;
    uint32_t word = load_word(cell);
    while (!is_settled(view, word) && (view.parity_bit != kParityBit || !is_clean(view, word))) {
      const float drift = racy_drift(view, at, word);
      if (is_selected(view, rule, at, word, drift)) {
        if (n == room) {
          *row = at;
          block->size = n;
          return n == free;
        }
        block->words[n] = word;
        to.rows[slot + n] = at + view.row_offset;
        to.words[slot + n] = true_word(view, at, word);
        if (view.track_drift) to.drift[slot + n] = drift;
        if (view.parity_bit == kParityBit) prefetch_row(view, at);
        ++n;
        break;
      }
      const uint32_t next = settled_word(rule, view.parity_bit, word, false);
      if (__atomic_compare_exchange_n(cell, &word, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) break;
    }
  }
  *row = at;
  block->size = n;
  return false;
}

// Enters the rows noted behind the end of `buffer` in the log of the walk, before their words change.
void Snapshot::log_block(const TableView& view, Table* table, const StagingBuffer& buffer, const WalkedBlock& block) {
  table->reserve_log(0, block.size);
  const StagingView& from = buffer.view();
  for (int64_t slot = buffer.size(); slot < buffer.size() + block.size; ++slot) {
    log_row(*view.log, from.rows[slot] - view.row_offset, from.words[slot], view.track_drift ? from.drift[slot] : 0.0F);
  }
}

// Copies weights and state of the `n` rows noted behind the end of `buffer`, runs of neighbours at once.
void Snapshot::copy(const TableView& view, StagingBuffer* buffer, int64_t n) {
  const StagingView& to = buffer->view();
  const int64_t slot = buffer->size();
  const int64_t* rows = to.rows + slot;
  for (int64_t i = 0; i < n;) {
    int64_t run = 1;
    while (i + run < n && rows[i + run] == rows[i] + run) ++run;
    racy_stage(view, rows[i] - view.row_offset, run, to, slot + i);
    i += run;
  }
  fence_stores();
}

// Settles rows that were copied behind the end of `buffer` and closes the gaps of those that changed meanwhile; these
// are left in `block`, and their number is returned.
int64_t Snapshot::validate(const TableView& table, const SelectRule& rule, StagingBuffer* buffer, WalkedBlock* block,
                           TrackerDelta* delta) {
  const TableView view = table;
  const StagingView to = buffer->view();
  const int64_t slot = buffer->size();
  int64_t kept = slot;
  int64_t changed = 0;
  for (int64_t i = 0; i < block->size; ++i) {
    const int64_t row = to.rows[slot + i] - view.row_offset;
    const uint32_t before = block->words[i];
    const uint32_t next = settled_word(rule, view.parity_bit, before, true);
    uint32_t word = before;
    if (!__atomic_compare_exchange_n(&meta_of(view, row)->word, &word, next, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
      block->rows[changed++] = row;
      continue;
    }
    if (!is_clean(view, before)) {
      account(view, before, next, delta);
      if (view.track_drift) account_drift(to.drift[slot + i], 0.0F, delta);
    }
    if (kept != slot + i) move_slot(buffer->format(), to, slot + i, kept);
    ++kept;
  }
  buffer->set_size(kept);
  return changed;
}

// nullptr if the snapshot was given up meanwhile; current_rule then selects nothing.
StagingPtr Snapshot::walk_buffer(int index, bool blocking) {
  const Part& part = tables_[static_cast<size_t>(index)].part;
  const RowFormat& format = part.table->format();
  const int64_t chunk_bytes = std::min(kMaxChunkBytes, std::max<int64_t>(pool_->max_bytes() / 4, 1));
  const int64_t least = std::clamp<int64_t>(kMaxChunkBytes / StagingBuffer::bytes_for(format, 1), 1, kMinChunkRows);
  const int64_t fitting = std::max(least, chunk_bytes / StagingBuffer::bytes_for(format, 1024) * 1024);
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
