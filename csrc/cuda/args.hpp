#pragma once

#include <cstdint>

#include "core/types.hpp"
#include "core/views.hpp"
#include "cuda/touched_area.hpp"

// What kernels are given. Pointers are to memory of the device; the owners are in table/.
namespace cpr::cuda {

// A table as kernels see it; in device memory. All tables' rows are numbered through in sort keys.
struct TableRecord {
  TableView view;
  uint64_t key = 0;
  int64_t first_row = 0;       // number of row 0
  uint32_t* claims = nullptr;  // [slots of the list]: largest row + 1 that was sampled for a slot in this step, or 0
  uint32_t frozen = 0;         // left out of updates
  uint32_t scale_by_freq = 0;
};

struct FeatureRecord {
  int64_t table = 0;
  int64_t column = 0;  // first column of the output
};

// What may be changed between steps; copied to the device when it has been.
struct Settings {
  float learning_rate = 0.0F;
  float eps = 0.0F;
  float weight_decay = 0.0F;
  float beta1 = 0.0F;
  float beta2 = 0.0F;
  float gain1 = 1.0F;  // 1 - beta1, 1 - beta2, rounded once
  float gain2 = 1.0F;
  float unused = 0.0F;
  double wide_beta1 = 0.0;
  double wide_beta2 = 0.0;
  uint32_t* failed_on_host = nullptr;  // pinned memory of the host: set with `failed`
};

inline constexpr uint64_t kNoError = ~uint64_t{0};

// In device memory; counted by kernels, so that a step needs nothing from the host.
struct DeviceState {
  Settings settings;
  int64_t step = 0;  // optimizer steps done
  int64_t skipped = 0;
  uint64_t bad_id = kNoError;      // see pack_error: the lowest position's
  uint64_t bad_table = kNoError;   // position << 32 | table of the same
  uint64_t bad_offset = kNoError;  // likewise, by place in the offsets
  uint32_t bad_position = ~0U;     // of bad_id and bad_table, which are of one lookup
  uint32_t failed = 0;             // an id or offset was bad: updates do nothing
  uint32_t not_finite = 0;         // the gradient of the update under way isn't
  float correction1 = 1.0F;        // of the update under way
  float correction2 = 1.0F;
};

inline constexpr int64_t kErrorLimit = int64_t{1} << 32;

// Position (31 bits) over value (33 bits, what doesn't fit clamped): the smallest is that of the lowest position.
CPR_INLINE uint64_t pack_error(int64_t position, int64_t value) {
  const int64_t clamped = value < -kErrorLimit ? -kErrorLimit : value >= kErrorLimit ? kErrorLimit - 1 : value;
  return (static_cast<uint64_t>(position) << 33) | static_cast<uint64_t>(clamped + kErrorLimit);
}

struct InputError {
  int64_t position = 0;
  int64_t value = 0;
};

inline InputError unpack_error(uint64_t packed) {
  const int64_t low = static_cast<int64_t>(packed & ((uint64_t{1} << 33) - 1));
  return {static_cast<int64_t>(packed >> 33), low - kErrorLimit};
}

// Memory of one lookup, kept for its update.
struct BatchView {
  uint64_t* keys = nullptr;        // [num_ids]: number of the row << 32 | sampled << 31 | position
  uint32_t* bag_of = nullptr;      // [num_ids]; without pooling nullptr: bag = position
  uint32_t* bag_length = nullptr;  // [bags], where a table pools by mean
  uint32_t* argmax = nullptr;      // laid out as the output, where a table pools by maximum
  void* weights = nullptr;         // [num_ids] per-sample weights, copied
  uint32_t* arrived = nullptr;     // [num_arrived] zeros for the update
  int64_t num_arrived = 0;
  // Only for optimizer kNone, written by the first gradient: the keys sorted, where the runs begin, their number.
  uint64_t* sorted = nullptr;  // [num_ids]
  uint32_t* starts = nullptr;  // [num_ids]
  uint32_t* unique = nullptr;
};

struct LookupArgs {
  const TableRecord* tables = nullptr;
  const FeatureRecord* features = nullptr;
  DeviceState* state = nullptr;
  int64_t num_features = 0;
  int64_t bags = 0;  // of all features; without pooling num_ids
  int64_t batch_size = 0;
  bool unpooled = false;  // offsets [features + 1]: where each feature's ids begin
  bool ids_are_64bit = false;
  bool offsets_are_64bit = false;
  const void* ids = nullptr;
  int64_t num_ids = 0;
  const void* offsets = nullptr;  // [bags + 1], or nullptr: ids_per_bag
  int64_t ids_per_bag = 0;
  const void* weights = nullptr;  // float, double for float64 tables
  void* out = nullptr;            // likewise; without pooling nullptr: rows are not read
  int64_t out_stride = 0;         // elements
  bool wide = false;              // float64 tables
  bool keep = false;              // for an update: `batch` is written
  bool samples = false;
  uint64_t sample_key = 0;
  int log2_period = 0;
  BatchView batch;
};

// Levels of sums: 32^6 > 2^29 ids.
inline constexpr int kMaxPartialLevels = 6;

// Sums of full chunks of equal rows: level l of chunks of 32^(l+1) keys. A chunk whose first key is p has place
// p / 32^(l+1): full chunks never share one.
struct PartialSums {
  void* sums = nullptr;         // [places, stride]; float, double for float64 tables
  uint32_t* sampled = nullptr;  // [places]: whether any key of the chunk was
  int64_t stride = 0;
  int64_t begin[kMaxPartialLevels] = {};     // first place of a level, which has num_ids / 32^(l+1) + 1
  int64_t counters[kMaxPartialLevels] = {};  // of arrivals at the chunks of level + 1, in BatchView::arrived
  int levels = 0;
};

// Sorted keys are dealt out in windows: a group updates the rows whose keys begin in its window.
inline constexpr int64_t kWindowKeys = 4;
CPR_INLINE int64_t windows_of(int64_t num_ids) { return (num_ids + kWindowKeys - 1) / kWindowKeys; }

struct UpdateArgs {
  const TableRecord* tables = nullptr;
  const FeatureRecord* features = nullptr;
  DeviceState* state = nullptr;
  int64_t num_tables = 0;
  int64_t batch_size = 0;
  int64_t num_ids = 0;
  BatchView batch;
  bool unpooled = false;
  const uint64_t* keys = nullptr;  // sorted
  const void* grad = nullptr;      // [batch, grad_stride]; float, double for float64 tables
  int64_t grad_stride = 0;
  int64_t grad_size = 0;  // numbers that must be finite
  float grad_scale = 1.0F;
  Optimizer optimizer = Optimizer::kNone;
  uint8_t* sampled = nullptr;  // [whole windows]: whether the row was sampled whose keys begin here
  // The windows of keys whose rows this launch meets: all of them, or a part where a snapshot has no room for all.
  int64_t begin_window = 0;
  int64_t end_window = 0;
  bool ends_step = true;  // the last launch of enter_sampled
  PartialSums partial;
  TouchedArea* touched = nullptr;  // of snapshots, if there is memory for any
  bool wide = false;               // float64 tables
  int64_t only_table = -1;         // rows of others aren't summed; -1: of all tables
};

struct WeightGradArgs {
  const TableRecord* tables = nullptr;
  const FeatureRecord* features = nullptr;
  const DeviceState* state = nullptr;
  int64_t batch_size = 0;
  int64_t num_ids = 0;
  BatchView batch;
  bool wide = false;
  const void* grad = nullptr;  // [batch, grad_stride]; float, double for float64 tables
  int64_t grad_stride = 0;
  void* out = nullptr;  // [num_ids], likewise
};

struct InitialiseArgs {
  TableView view;
  uint64_t key = 0;
  float low = 0.0F;
  float high = 0.0F;
  float state = 0.0F;
  uint32_t* claims = nullptr;
};

}  // namespace cpr::cuda
