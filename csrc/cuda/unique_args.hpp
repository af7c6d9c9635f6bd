#pragma once

#include <cstdint>

#include "cuda/args.hpp"

// What the kernels are given that go over the unique rows of one table among ids, without an optimizer.
namespace cpr::cuda {

// Ids that belong to no lookup: checked, and written as sort keys.
struct IdArgs {
  const TableRecord* tables = nullptr;
  DeviceState* state = nullptr;
  int64_t table = 0;
  bool ids_are_64bit = false;
  const void* ids = nullptr;
  int64_t num_ids = 0;
  bool samples = false;  // draws accesses for the list, as a lookup of these ids alone
  uint64_t sample_key = 0;
  int log2_period = 0;
  uint64_t* keys = nullptr;  // [num_ids]
};

enum class UniqueStep {
  kGradient,      // rows and their summed gradients are written; they are tracked
  kTrack,         // they are tracked, none becomes dirty
  kRenormalise,   // those whose norm is above the limit are scaled down to it
  kEnterSampled,  // after kGradient or kTrack: enters sampled rows into the list and counts the step
};

// In a failed state (args.hpp) nothing is written but `count`, 0.
struct UniqueArgs {
  UniqueStep step = UniqueStep::kGradient;
  // The sorted keys, what a gradient is summed from, and the table: update.only_table.
  UpdateArgs update;
  const uint32_t* starts = nullptr;  // [num_ids]: where the keys of each unique row begin, of all tables
  const uint32_t* unique = nullptr;  // their number
  uint32_t* sampled = nullptr;       // [num_ids]: whether a unique row was; for kEnterSampled
  uint32_t steps = 0;                // optimizer steps that are counted at the end
  // kGradient
  int64_t* rows = nullptr;  // [num_ids], local, ascending; the first `count` are written
  void* values = nullptr;   // [num_ids, dim]; float, double for float64 tables
  // kRenormalise
  double max_norm = 0.0;
  int norm_type = 2;          // 1, 2, or 0: the largest
  uint64_t* count = nullptr;  // kGradient: unique rows; kRenormalise: rows that were scaled are added
};

}  // namespace cpr::cuda
