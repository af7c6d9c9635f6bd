#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/views.hpp"
#include "table/memory.hpp"

namespace cpr {

struct AreaEntry;
struct Superblock;

// A part of a region whose memory is taken as it is filled. Move-only; keeps the descriptor's owner alive by itself.
class SparseArea {
 public:
  SparseArea() = default;
  SparseArea(int fd, size_t offset, HugeBuffer memory) : memory_(std::move(memory)), fd_(fd), offset_(offset) {}
  char* data() const { return static_cast<char*>(memory_.data()); }
  size_t backed() const { return backed_; }
  // Takes memory for the first `bytes`; false when there is none or the area is smaller.
  bool back(size_t bytes) noexcept;
  // Gives back what lies beyond `bytes`.
  void trim(size_t bytes) noexcept;

 private:
  HugeBuffer memory_;
  int fd_ = -1;
  size_t offset_ = 0;
  size_t backed_ = 0;
};

// Memory of tables that outlives the process: a file (or memfd) mapped shared. It begins with a header that names areas
// in the order in which they were asked for; a process that comes later asks for the same ones in the same order.
//
// `commit` writes what belongs to no row into one of two slots in turn and numbers it: with its number, the step is
// complete. Until the first commit, and after `invalidate`, the contents count for nothing.
//
// Owner: the one process that holds the record lock of the file, which the system frees when it dies. Used by one
// thread at a time.
class Region {
 public:
  // Takes over `fd`, open for reading and writing. An empty file, one that no step was committed to and one written
  // before the machine was last started begin anew. Throws IoError (EAGAIN: another has the lock), Error for another
  // version, CorruptionError for a torn header; `discard`: these begin anew too. Never touches another kind of file:
  // invalid_argument.
  Region(int fd, std::string name, bool discard);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  bool attached() const { return attached_; }
  // Why contents that were there began anew; empty if there were none.
  const std::string& reason() const { return reason_; }
  uint64_t sequence() const { return sequence_; }
  // The last commit that ended a step: rows written since then are in doubt.
  uint64_t ended() const { return ended_; }
  const std::string& name() const { return name_; }

  // Says what the next areas are for. The text of the process before, where it differs; empty if it doesn't.
  std::string describe(const std::string& text);
  // The next area, zeroed in a new region; all its memory is taken now. Throws IoError without space for it.
  Arena area(size_t bytes);
  SparseArea sparse_area(size_t bytes);
  // Begins anew, as long as no area was handed out.
  void reset(const std::string& reason);

  void invalidate();
  struct Bytes {
    const void* data;
    size_t size;
  };
  // Durable against the death of the process when it returns. Throws IoError without space, with the commit before in
  // force. `ends_step`: rows written before it are not in doubt any more.
  void commit(const std::string& meta, const std::vector<Bytes>& tensors, bool ends_step);
  // What was committed last. Throws CorruptionError.
  std::pair<std::string, std::vector<std::string>> read() const;

 private:
  struct Slots;
  struct Slot;
  AreaEntry* next_area(size_t bytes, char kind);
  void lock(bool* mine);
  void open(bool discard);
  std::string refusal(bool* torn) const;
  void clear();
  void grow(size_t end);
  void map_slots(size_t offset, size_t capacity);
  void make_slots(size_t bytes);
  char* slot_data(int index) const;
  uint32_t checksum(int index) const;
  Superblock* super() const { return static_cast<Superblock*>(header_.data()); }
  Slots* slots() const { return static_cast<Slots*>(slots_.data()); }

  const int fd_;
  const std::string name_;
  std::pair<uint64_t, uint64_t> key_;
  HugeBuffer header_;
  HugeBuffer slots_;
  bool attached_ = false;
  std::string reason_;
  size_t used_areas_ = 0;
  uint64_t sequence_ = 0;
  uint64_t ended_ = 0;
};

// What must be found again of a table beside its rows, words and list.
struct TableBook {
  uint32_t parity = 0;
  uint32_t unfinished = 0;  // parity bits of a snapshot whose walk has not settled every row
  uint64_t deferred = 0;    // sampled rows to be entered
  RowLogBook logs[2];       // of the walk, of the update pass
};

// The same of a collection.
struct CollectionBook {
  int64_t snapshots_begun = 0;
  uint32_t log_tag = 0;  // of the snapshot whose rows are logged; 0: none is in flight
  uint32_t last_tag = 0;
  // The rows that were or are being written since the step that the commit `marker_sequence` ended: uint32 numbers, for
  // each table its number, how many, and the rows.
  uint64_t marker_sequence = 0;
  uint64_t marker_size = 0;
  uint64_t marker_lost = 0;  // there was no room: any row
};

}  // namespace cpr
