#include "bind/lookup_arguments.hpp"

#include <cmath>

#include "bind/checks.hpp"

namespace cpr {

IdsArgument checked_ids(const TensorRef& ids) {
  const bool wide = is_64bit(ids, "ids");
  check_shape(ids, "ids", {ids.size()});
  require(ids.size() < kMaxIds, "ids: expected fewer than 2^31, got " + std::to_string(ids.size()));
  return {reinterpret_cast<const void*>(ids.address), wide, ids.size()};
}

void take_ids(const TensorRef& ids, LookupInput* in) {
  const IdsArgument of = checked_ids(ids);
  in->ids = of.data;
  in->ids_are_64bit = of.are_64bit;
  in->num_ids = of.n;
}

void take_offsets(const TensorRef& offsets, LookupInput* in) {
  in->offsets_are_64bit = is_64bit(offsets, "offsets");
  check_shape(offsets, "offsets", {offsets.size()});
  in->offsets = reinterpret_cast<const void*>(offsets.address);
}

void check_max_norm(double max_norm) {
  require(max_norm >= 0.0 && std::isfinite(max_norm),
          "max_norm: expected a finite value >= 0, got " + std::to_string(max_norm));
}

LookupInput checked_input(const InputShape& shape, const TensorRef& ids, const std::optional<TensorRef>& offsets,
                          const std::optional<TensorRef>& weights, const std::optional<TensorRef>& out,
                          int64_t ids_per_bag) {
  const char* const outer = shape.wide ? "float64" : "float32";
  LookupInput in;
  take_ids(ids, &in);
  in.batch_size = in.num_ids;
  require(out.has_value() || shape.unpooled, "out: expected memory, unless there is no pooling; got none");
  if (out.has_value()) {
    require(out->shape.size() == 2, "out: expected two dimensions, got shape " + describe(out->shape));
    in.batch_size = out->shape[0];
    in.out = data_as(*out, "out", outer);
    check_shape(*out, "out", {in.batch_size, shape.output_dim});
  }
  if (offsets.has_value()) {
    take_offsets(*offsets, &in);
    check_shape(*offsets, "offsets", {(shape.unpooled ? shape.features : shape.features * in.batch_size) + 1});
    require(
        !shape.unpooled || in.batch_size == in.num_ids,
        "out: expected a row for each of " + std::to_string(in.num_ids) + " ids, got " + std::to_string(in.batch_size));
  } else {
    require(!shape.unpooled, "offsets: expected where each feature's ids begin, got none");
    in.ids_per_bag = ids_per_bag;
    require(ids_per_bag >= 0 && ids_per_bag * shape.features * in.batch_size == in.num_ids,
            "ids: expected " + std::to_string(shape.features) + " features * " + std::to_string(in.batch_size) +
                " bags * " + std::to_string(ids_per_bag) + " ids, got " + std::to_string(in.num_ids));
  }
  if (weights.has_value()) {
    in.per_sample_weights = data_as(*weights, "per_sample_weights", outer);
    check_shape(*weights, "per_sample_weights", {in.num_ids});
    require(shape.not_summed.empty(),
            "per_sample_weights: expected sum pooling, got mean, max or none for table '" + shape.not_summed + "'");
  }
  return in;
}

}  // namespace cpr
