#include "table/memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "core/errors.hpp"

namespace cpr {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

HugeBuffer::HugeBuffer(size_t bytes) {
  if (bytes > 0) map(bytes, -1, 0);
}

HugeBuffer::HugeBuffer(size_t bytes, int fd, size_t offset) {
  if (bytes > 0) map(bytes, fd, offset);
}

// Aligns to the huge page by reserving one page more and unmapping the ends.
void HugeBuffer::map(size_t bytes, int fd, size_t offset) {
  const bool huge = bytes >= kHugePage;
  const size_t unit = huge ? kHugePage : 4096;
  const size_t size = (bytes + unit - 1) / unit * unit;
  const size_t mapped = huge ? size + kHugePage : size;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(raw);
  if (huge) {
    char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) & ~(kHugePage - 1));
    if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
    const size_t tail = mapped - static_cast<size_t>(aligned - begin) - size;
    if (tail > 0) munmap(aligned + size, tail);
    begin = aligned;
  }
  if (fd >= 0 &&
      mmap(begin, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    const int error = errno;
    munmap(begin, size);
    throw IoError(error, "memory of a file can't be shared", std::to_string(fd));
  }
  if (huge) madvise(begin, size, MADV_HUGEPAGE);  // advice: without it the memory works, only slower
  data_ = begin;
  size_ = size;
}

void* Arena::take(size_t bytes) {
  if (aligned(bytes) > buffer_.size() - used_) throw std::bad_alloc();
  void* slice = static_cast<char*>(buffer_.data()) + used_;
  used_ += aligned(bytes);
  return slice;
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace cpr
