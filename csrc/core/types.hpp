#pragma once

#include <cstdint>
#include <string>

#include "core/macros.hpp"

namespace cpr {

// kNone: a row an id; then it is that of every table of a collection.
enum class Pooling : uint8_t { kSum, kMean, kMax, kNone };

// kNone: torch's own optimizer writes the weights; the engine only tracks.
enum class Optimizer : uint8_t { kNone, kSgd, kRowWiseAdagrad, kAdagrad, kAdam, kPartialRowWiseAdam };

// Of weights. Arithmetic is in float32; float64 tables (Optimizer::kNone only) are pooled in float64.
enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64 };

CPR_INLINE constexpr int64_t item_size(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// Settings of one table. Local row r of the table is global row r + row_offset.
struct TableSpec {
  std::string name;
  int64_t num_embeddings = 0;
  int64_t embedding_dim = 0;
  Pooling pooling = Pooling::kSum;
  DType dtype = DType::kFloat32;
  int64_t row_offset = 0;
  float init_min = 0.0F;
  float init_max = 0.0F;
  bool track_dirty = true;
  bool track_mfu = true;
  bool track_ssu = true;
  bool track_drift = false;
  double ssu_fraction = 0.125;
  int64_t ssu_period = 2;  // a power of two
  bool scale_grad_by_freq = false;
  bool external = false;  // rows lie in memory of the caller's, bound before first use
};

struct OptimizerSpec {
  Optimizer kind = Optimizer::kNone;
  float learning_rate = 0.0F;
  float eps = 1e-8F;
  float initial_state = 0.0F;
  double beta1 = 0.9;
  double beta2 = 0.999;
  float weight_decay = 0.0F;
};

// What an optimizer keeps for a row: `arrays` arrays of `dim` floats, then `of_row` values in the row's metadata.
struct StateLayout {
  int arrays = 0;
  int of_row = 0;
};

CPR_INLINE constexpr StateLayout state_layout(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kRowWiseAdagrad:
      return {0, 1};
    case Optimizer::kAdagrad:
      return {1, 0};
    case Optimizer::kAdam:
      return {2, 0};
    case Optimizer::kPartialRowWiseAdam:
      return {1, 1};
    default:
      return {0, 0};
  }
}

// Arrays of state beside the metadata: torch's optimizers, whose state is bound, have up to three.
inline constexpr int kMaxStateArrays = 4;

// A sort key is row << 32 | sampled << 31 | position; the last row number marks an empty slot of the sampled list.
inline constexpr int64_t kMaxRows = (int64_t{1} << 32) - 1;
inline constexpr int64_t kMaxDim = (int64_t{1} << 32) - 1;
inline constexpr int64_t kMaxNumbers = int64_t{1} << 48;  // of a table
inline constexpr int64_t kMaxIds = int64_t{1} << 31;
inline constexpr uint64_t kSampledFlag = uint64_t{1} << 31;
inline constexpr uint64_t kPositionMask = kSampledFlag - 1;
inline constexpr uint32_t kNoPosition = ~uint32_t{0};  // of no id of a batch

// Sums are taken in chunks of 32 items, then of 32 sums, and so on (core/ordered_sum.hpp).
inline constexpr int64_t kSumFanout = 32;

// Of one call; more are not used.
inline constexpr int kMaxThreads = 256;

}  // namespace cpr
