// Reads sections of a segment file and their checksums, by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cpr::store {

struct Section {
  uint64_t offset = 0;  // bytes, from the start of the file
  size_t size = 0;      // bytes
  void* to = nullptr;   // memory for the bytes; nullptr: only their checksum is wanted
};

// Returns the CRC-32C of each section, in order; the bytes are checksummed while they are in cache, and go to memory
// only where it is given. The file is not mapped, so one that is cut short meanwhile is an error and no signal.
// `fd` is open for reading and used by pread alone; `path` is for messages. Throws IoError, EIO for a file that ends
// before a section does; what the sections' memory holds is then undefined.
std::vector<uint32_t> read_sections(int fd, const std::string& path, std::span<const Section> sections, int threads);

}  // namespace cpr::store
