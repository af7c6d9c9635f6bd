// Reads sections of segment files and their checksums, by several threads. Files are not mapped, so one that is cut
// short meanwhile is an error and no signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/system.hpp"

namespace cpr::store {

struct Section {
  int fd = -1;          // open for reading; used by pread alone
  uint64_t offset = 0;  // bytes, from the start of the file
  size_t size = 0;      // bytes
  void* to = nullptr;   // memory for the bytes; nullptr: only their checksum is wanted
};

// Returns of each section, in order, its CRC-32C, or a negative errno; -EIO for a file that ends before it does. The
// bytes are checksummed while they are in cache; what the memory holds after an error is undefined.
std::vector<int64_t> read_sections(std::span<const Section> sections, int threads, System* system);

// The rows of one table in a segment; offsets are in bytes from the start of the file.
struct StoredRows {
  int fd = -1;
  std::string path;   // for messages
  std::string owner;  // for messages
  int64_t rows = 0;
  uint64_t ids_at = 0;  // int64 each
  uint64_t weight_at = 0;
  uint64_t state_at = 0;
  size_t weight_size = 0;  // bytes a row
  size_t state_size = 0;   // bytes a row; 0: none
  int64_t begin = 0;       // ids are of [begin, end)
  int64_t end = 0;
};

struct StoredCrcs {
  uint32_t ids = 0;
  uint32_t weight = 0;
  uint32_t state = 0;
};

// Where rows go; called by several threads at once.
class RowTaker {
 public:
  virtual ~RowTaker() = default;

  // The memory that the weights of these rows are to be read to, if it is one piece; else nullptr.
  virtual void* place(const int64_t* ids, int64_t n) = 0;

  // Takes a block of rows; weight is nullptr where it was read to its place.
  virtual void take(const int64_t* ids, int64_t n, const void* weight, const float* state) = 0;
};

// Hands the rows of each of `stored` to its taker, block by block in any order, from memory that is small enough to
// stay in cache, and returns the checksums of what was read. Throws IoError; std::out_of_range for an id outside
// [begin, end), of whose block nothing was handed on; and what a taker throws. Some blocks may have been handed on or
// read to their place then.
std::vector<StoredCrcs> read_rows(std::span<const StoredRows> stored, std::span<RowTaker* const> takers, int threads,
                                  System* system);

}  // namespace cpr::store
