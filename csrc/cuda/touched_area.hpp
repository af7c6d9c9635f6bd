#pragma once

#include <cstdint>

namespace cpr::cuda {

// Where updates record the rows of a snapshot that they meet first; in device memory, one for a collection.
struct TouchedArea {
  char* records = nullptr;
  uint64_t capacity = 0;  // bytes
  uint64_t used = 0;
  uint64_t lost = ~uint64_t{0};  // where the first record would have begun that there was no room for
};

}  // namespace cpr::cuda
