#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "core/views.hpp"

// The loops over ids and rows, compiled once per instruction set. Kernels check nothing but what they return, allocate
// nothing and are noexcept; distinct units may run on distinct threads.
namespace cpr::cpu {

// Sort keys (core/types.hpp) one after the other.
struct KeySpan {
  const uint64_t* keys = nullptr;
  int64_t size = 0;
};

// One feature's bags [begin, end) of `batch`; positions in ids and bag numbers count over all features.
struct LookupTask {
  TableView table;
  const void* ids = nullptr;
  bool ids_are_64bit = false;
  const int64_t* offsets = nullptr;          // of this feature's first bag in the range: end - begin + 1 values
  const void* per_sample_weights = nullptr;  // float, double for float64 tables
  int64_t first_bag = 0;                     // number of bag `begin` over all features
  int64_t first_row = 0;                     // `begin`: row of out
  int64_t bags = 0;
  void* out = nullptr;             // the feature's first column of row 0; float, double for float64 tables
  int64_t out_stride = 0;          // elements
  bool unit_bags = false;          // every bag of the range holds one id: bag_of and bag_length may be left out
  uint64_t* keys = nullptr;        // [num_ids], written for the range
  uint32_t* bag_of = nullptr;      // [num_ids], written for the range
  uint32_t* bag_length = nullptr;  // [features * batch], written for the range if the table pools by mean
  uint32_t* argmax = nullptr;  // max pooling: position of each element's largest, laid out as out; kNoPosition: none
};

struct UpdateArgs {
  TableView table;
  Optimizer optimizer = Optimizer::kNone;
  float learning_rate = 0.0F;
  float eps = 0.0F;
  float beta1 = 0.0F;
  float beta2 = 0.0F;
  float gain1 = 1.0F;  // 1 - beta1, 1 - beta2, rounded once
  float gain2 = 1.0F;
  float correction1 = 1.0F;  // 1 - beta1^t, 1 - beta2^t of this step
  float correction2 = 1.0F;
  float weight_decay = 0.0F;
  float grad_scale = 1.0F;
  bool scale_grad_by_freq = false;
  uint64_t rounding_key = 0;   // of this step and table: rows of half precision are rounded stochastically
  const void* grad = nullptr;  // [batch, grad_stride]; float, double for float64 tables
  int64_t grad_stride = 0;
  int64_t batch = 0;
  const int64_t* feature_column = nullptr;   // [features]: first column of a feature
  int64_t only_feature = -1;                 // the table's feature, or -1 where several share it
  const uint32_t* bag_of = nullptr;          // nullptr: every bag holds one id, bag number = position
  const void* per_sample_weights = nullptr;  // [num_ids]; float, double for float64 tables
  const uint32_t* bag_length = nullptr;      // [features * batch], mean pooling
  const uint32_t* argmax = nullptr;          // max pooling: [batch, grad_stride] as of the lookup
  const uint32_t* multiplicity = nullptr;    // [num_ids]: accesses that each id stands for; nullptr: one
  // Optimizer::kNone: unique rows and their gradients are written here in ascending order; without out_grad the rows
  // are only tracked.
  int64_t* out_rows = nullptr;
  void* out_grad = nullptr;
};

// Between a row a and its copy b: the square root of the sum of (a - b)^2; the sum of |a - b|; half the sum of
// |a * (1 / sum(a)) - b * (1 / sum(b))|.
enum class Distance { kL2, kL1, kTv };

inline constexpr int kScratchRows = 3;

// A thread's scratch; sized for the largest unit before kernels run.
struct Workspace {
  std::vector<uint64_t> keys_a;
  std::vector<uint64_t> keys_b;
  std::vector<double> sums;      // [kSumLevels + kScratchRows, dim] of float or double
  std::vector<uint32_t> before;  // words of the unit's unique rows around the update
  std::vector<uint32_t> after;
  std::vector<uint32_t> starts;     // where their runs of keys begin, and the end
  std::vector<float> drift_before;  // and their drifts
  std::vector<float> drift_after;
  std::vector<uint32_t> sampled;  // unique rows that were sampled
  int64_t num_sampled = 0;
  void reserve(int64_t keys, int64_t dim, bool drift);
};

// Rows longer than this many items are summed in segments of so many, whose sums are added in order, as doubles.
inline constexpr int64_t kDistanceSegment = 1 << 14;

// Rows and the copy that they are compared with, one after the other.
struct DistanceTask {
  const char* now = nullptr;
  const char* saved = nullptr;
  DType dtype = DType::kFloat32;
  Distance kind = Distance::kL2;
  int64_t dim = 0;   // of the rows, at most kDistanceSegment; of the segment
  int64_t rows = 1;  // 1 for a segment
  int64_t room = 0;  // items from the first to the end of either's memory
};

// The distance, from the sum over a row's items. What isn't finite becomes the largest float.
template <typename T>
CPR_INLINE float finish_distance(Distance kind, T sum) {
  T distance = sum;
  if (kind == Distance::kL2) distance = sizeof(T) == sizeof(float) ? __builtin_sqrtf(sum) : __builtin_sqrt(sum);
  if (kind == Distance::kTv) distance *= T{0.5};
  return distance < static_cast<T>(__FLT_MAX__) ? static_cast<float>(distance) : __FLT_MAX__;
}

// The unique rows of a table in a batch. Memory is the caller's, [n] of the table's keys unless said otherwise.
struct DistinctRows {
  uint64_t* keys_a = nullptr;  // scratch
  uint64_t* keys_b = nullptr;
  uint32_t* rows = nullptr;          // ascending
  uint32_t* starts = nullptr;        // [n + 1]: where the keys of each begin in `sorted`, and the end
  uint64_t* index = nullptr;         // by position, of the whole batch: number of the row << 32 | position
  const uint64_t* sorted = nullptr;  // set: one of the two
};

struct Kernels {
  const char* name;
  // Position of the first id outside [0, num_rows) among [begin, end), or -1; writes keys of the range.
  int64_t (*read_ids)(const void* ids, bool is_64bit, int64_t begin, int64_t end, int64_t num_rows,
                      const SampleRule& sample, uint64_t* keys);
  void (*pool)(const LookupTask& task, void* sums);
  // Sorts the unit's keys by row and updates each row once; returns the number of unique rows. The sampled ones are
  // left in the workspace, for enter.
  int64_t (*update)(const UpdateArgs& args, const KeySpan* spans, int num_spans, Workspace* workspace,
                    TrackerDelta* delta);
  // Enters settled rows that were sampled, of one unit, into the list: step by step, ascending within a step.
  void (*enter)(const TableView& table, const uint32_t* rows, int64_t n, TrackerDelta* delta);
  // d loss / d per-sample weight of the positions of one feature: dot of the bag's output gradient and the row.
  // `scratch`: a row. `out`: float, double for float64 tables.
  void (*weight_grad)(const UpdateArgs& args, const KeySpan& span, void* scratch, void* out);
  bool (*all_finite)(const float* x, int64_t n);
  // `scratch`: a row.
  void (*initialise)(const TableView& table, int64_t begin, int64_t end, uint64_t key, float low, float high,
                     float state, float* scratch);
  // The distance of each row.
  void (*distances)(const DistanceTask& task, float* out);
  // Of one segment: the sums of the items and of the copy's, out [2]; the sum that finish_distance wants, given those
  // of its row, totals [2] (kTv).
  void (*distance_totals)(const DistanceTask& task, double* out);
  void (*distance_sum)(const DistanceTask& task, const double* totals, double* out);
  // Returns the number of unique rows among the n keys; `index` may be what the spans point into.
  int64_t (*distinct)(const KeySpan* spans, int num_spans, int64_t n, int64_t num_rows, DistinctRows* out);
  // The gradient of each of `rows` rows, [rows, dim], summed in order; starts [rows + 1] count from `keys`.
  // `scratch`: [kSumLevels, dim] floats.
  void (*sum_rows)(const UpdateArgs& args, const uint64_t* keys, const uint32_t* starts, int64_t rows, void* scratch,
                   float* out);
};

// Chosen once at import: the best level of this machine, or CPR_ISA. Throws std::invalid_argument for a level that is
// unknown or that the machine doesn't have.
const Kernels& kernels();
std::vector<std::string> supported_levels();

}  // namespace cpr::cpu
