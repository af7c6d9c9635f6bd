#pragma once

#include <cstddef>
#include <utility>

namespace cpr {

// Zeroed anonymous memory, aligned to the page, with huge pages asked for from 2 MiB on. Move-only owner.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(size_t bytes);  // throws std::bad_alloc
  // The bytes of a file from `offset` on instead, shared with who maps it too; throws IoError.
  HugeBuffer(size_t bytes, int fd, size_t offset);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void map(size_t bytes, int fd, size_t offset);

  void* data_ = nullptr;
  size_t size_ = 0;
};

// One buffer that several tables share, so that small ones lie in huge pages too: the update pass hops from row to row,
// and with small pages its prefetches wait for page walks. Slices stay valid as long as somebody holds the arena.
class Arena {
 public:
  explicit Arena(size_t bytes) : buffer_(bytes) {}
  explicit Arena(HugeBuffer buffer) : buffer_(std::move(buffer)) {}
  static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  void* take(size_t bytes);  // 64-byte aligned, zeroed; sizes were added up by the caller

 private:
  HugeBuffer buffer_;
  size_t used_ = 0;
};

}  // namespace cpr
