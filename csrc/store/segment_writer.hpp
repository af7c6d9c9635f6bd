// Writes segments, safetensors files whose tensors are gathered from pieces of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "store/system.hpp"

namespace cpr::store {

// Memory of the caller, read only, valid and unchanged for the whole call.
struct Piece {
  const void* data = nullptr;
  size_t size = 0;  // bytes
};

// One tensor: the pieces end to end are its bytes, row-major, little-endian.
struct SegmentTensor {
  std::string name;   // UTF-8
  std::string dtype;  // as in safetensors: "F32", "I64", ...
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;

  uint64_t size() const noexcept;
};

// A file being created: removed again unless `sync` has returned. One thread at a time.
class SegmentFile {
 public:
  // Creates `path`, which must not exist, and writes everything; no byte is promised to be durable yet, but the kernel
  // has begun to write them to the disk. `__metadata__` is `metadata` plus "crc32c.<tensor>" = 8 hex digits for every
  // tensor. The header is padded so that the data begins at a multiple of 64 bytes. Nothing is copied: the pieces are
  // written by pwritev and not needed afterwards.
  // Throws std::invalid_argument for a repeated name, IoError when the system refuses; the file is then removed.
  SegmentFile(std::string path, std::span<const SegmentTensor> tensors,
              const std::map<std::string, std::string>& metadata, SystemPtr system);
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  uint64_t size() const { return size_; }  // bytes of the file
  uint32_t crc() const { return crc_; }    // CRC-32C of the whole file

  // Returns when the bytes are durable (the caller syncs the directory). Throws IoError; a failed sync is final and
  // the file removed: the kernel may have dropped the pages it could not write, and a second sync would succeed.
  // Throws std::invalid_argument the second time.
  void sync();

 private:
  SystemPtr system_;
  std::string path_;
  int owner_;  // process that creates the file
  int fd_ = -1;
  uint64_t size_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace cpr::store
