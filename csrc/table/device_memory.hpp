#pragma once

#include <cstdint>

namespace cpr {

// Lays arrays out one after the other in memory of the caller's, aligned to 16 bytes each; without memory only counts.
class Places {
 public:
  explicit Places(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(int64_t n) {
    char* at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return reinterpret_cast<T*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace cpr
