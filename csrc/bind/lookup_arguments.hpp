#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bind/tensor_ref.hpp"
#include "table/lookup_input.hpp"

namespace cpr {

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
