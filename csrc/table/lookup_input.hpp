#pragma once

#include <cstdint>

#include "core/types.hpp"

namespace cpr {

// ids feature-major; either offsets [features * batch + 1] or ids_per_bag >= 1.
struct LookupInput {
  const void* ids = nullptr;
  bool ids_are_64bit = false;
  int64_t num_ids = 0;
  const void* offsets = nullptr;
  bool offsets_are_64bit = false;
  int64_t ids_per_bag = 0;
  int64_t batch_size = 0;
  const void* per_sample_weights = nullptr;  // float, double for float64 tables
  void* out = nullptr;  // [batch_size, output_dim], likewise; without pooling nullptr: nothing is read
  bool keep = true;     // for an update: draws the sampled accesses of the step
  int threads = 1;
};

int64_t offset_at(const LookupInput& in, int64_t i);

struct OffsetsRead {
  int64_t bad = -1;  // the first offset that is out of order
  bool unit_bags = false;
};

// Copies the offsets of `bags` bags from the first on to `out` [bags + 1] and checks them.
OffsetsRead read_offsets(const LookupInput& in, int64_t first, int64_t bags, int64_t* out);

// The first and the last offset; throws std::invalid_argument. Without pooling, offsets tell where the ids of each
// feature begin, and all are checked.
void check_ends(const LookupInput& in, int64_t features, bool unpooled);

[[noreturn]] void throw_bad_offset(const LookupInput& in, int64_t i);  // invalid_argument
[[noreturn]] void throw_bad_id(const TableSpec& spec, const void* ids, bool ids_are_64bit,
                               int64_t position);  // out_of_range

}  // namespace cpr
