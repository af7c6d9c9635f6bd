// Writes one segment: a safetensors file whose tensors are gathered from pieces of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

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

struct SegmentResult {
  uint64_t size = 0;  // bytes of the file
  uint32_t crc = 0;   // CRC-32C of the whole file
};

// Creates `path`, which must not exist, and returns when its bytes are durable (the caller syncs the directory).
// `__metadata__` is `metadata` plus "crc32c.<tensor>" = 8 hex digits for every tensor. The header is padded so that
// the data begins at a multiple of 64 bytes. Nothing is copied: the pieces are written by writev.
// Throws std::invalid_argument for a repeated name, IoError when the system refuses; the file is then removed.
SegmentResult write_segment(const std::string& path, std::span<const SegmentTensor> tensors,
                            const std::map<std::string, std::string>& metadata);

}  // namespace cpr::store
