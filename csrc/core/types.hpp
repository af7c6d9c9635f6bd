#pragma once

#include <cstdint>
#include <string>

namespace cpr {

enum class Pooling : uint8_t { kSum, kMean };

// kNone: torch's own optimizer writes the weights; the engine only tracks.
enum class Optimizer : uint8_t { kNone, kSgd, kRowWiseAdagrad };

// Settings of one table. Local row r of the table is global row r + row_offset.
struct TableSpec {
  std::string name;
  int64_t num_embeddings = 0;
  int64_t embedding_dim = 0;
  Pooling pooling = Pooling::kSum;
  int64_t row_offset = 0;
  float init_min = 0.0F;
  float init_max = 0.0F;
  bool track_dirty = true;
  bool track_mfu = true;
  bool track_ssu = true;
  double ssu_fraction = 0.125;
  int64_t ssu_period = 2;  // a power of two
};

struct OptimizerSpec {
  Optimizer kind = Optimizer::kNone;
  float learning_rate = 0.0F;
  float eps = 1e-8F;
  float initial_state = 0.0F;
};

// A sort key is row << 32 | sampled << 31 | position; the last row number marks an empty slot of the sampled list.
inline constexpr int64_t kMaxRows = (int64_t{1} << 32) - 1;
inline constexpr int64_t kMaxIds = int64_t{1} << 31;
inline constexpr uint64_t kSampledFlag = uint64_t{1} << 31;
inline constexpr uint64_t kPositionMask = kSampledFlag - 1;

// Of one call; more are not used.
inline constexpr int kMaxThreads = 256;

}  // namespace cpr
