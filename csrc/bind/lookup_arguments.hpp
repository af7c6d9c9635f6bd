#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bind/tensor_ref.hpp"
#include "table/lookup_input.hpp"

namespace cpr {

struct IdsArgument {
  const void* data = nullptr;
  bool are_64bit = false;
  int64_t n = 0;
};

// One dimension of fewer than 2^31 int32 or int64. Throws std::invalid_argument, TypeError.
IdsArgument checked_ids(const TensorRef& ids);
void take_ids(const TensorRef& ids, LookupInput* in);
// Likewise, of any number.
void take_offsets(const TensorRef& offsets, LookupInput* in);
void check_max_norm(double max_norm);

// What of a collection a lookup's arguments have to fit.
struct InputShape {
  int64_t features = 0;
  int64_t output_dim = 0;
  bool unpooled = false;
  bool wide = false;
  std::string not_summed;  // the first table that doesn't pool by sum, or empty
};

// All but `keep` and `threads`. Throws std::invalid_argument for shapes, TypeError for dtypes.
LookupInput checked_input(const InputShape& shape, const TensorRef& ids, const std::optional<TensorRef>& offsets,
                          const std::optional<TensorRef>& weights, const std::optional<TensorRef>& out,
                          int64_t ids_per_bag);

}  // namespace cpr
