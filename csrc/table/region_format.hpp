// The bytes of a region's file that belong to no table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/crc32c.hpp"
#include "table/region.hpp"

namespace cpr {

inline constexpr size_t kRegionAlign = size_t{2} << 20;
inline constexpr size_t kMaxAreas = 2048;
inline constexpr size_t kRegionPage = 4096;

inline size_t region_rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct AreaEntry {
  uint64_t offset;
  uint64_t bytes : 56;
  uint64_t kind : 8;
};

struct Superblock {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // of what follows up to `ready`
  char boot[40];
  uint64_t num_areas;
  AreaEntry areas[kMaxAreas];
  uint64_t ready;  // 1 once a step was committed
  uint64_t end;    // of the file
  uint64_t slots;  // where they are; 0: none

  uint32_t checksum() const { return crc32c(boot, static_cast<size_t>(reinterpret_cast<const char*>(&ready) - boot)); }
};

inline constexpr size_t kRegionHeaderBytes = (sizeof(Superblock) + kRegionAlign - 1) / kRegionAlign * kRegionAlign;

struct Region::Slot {
  uint64_t sequence;  // 0: not valid
  uint64_t ended;
  uint64_t meta_bytes;
  uint64_t num_tensors;
  uint64_t bytes;
  uint64_t crc;
};

// Two slots follow, from the next page on.
struct Region::Slots {
  uint64_t capacity;
  Slot slot[2];
};

}  // namespace cpr
