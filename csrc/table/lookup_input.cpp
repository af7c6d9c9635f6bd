// What a caller gives to a lookup: reading it and saying what is wrong with it.
#include "table/lookup_input.hpp"

#include <stdexcept>
#include <string>

namespace cpr {

namespace {

template <typename Offset>
void copy_offsets(const Offset* offsets, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(offsets[i]);
}

}  // namespace

int64_t offset_at(const LookupInput& in, int64_t i) {
  if (in.offsets == nullptr) return i * in.ids_per_bag;
  return in.offsets_are_64bit ? static_cast<const int64_t*>(in.offsets)[i] : static_cast<const int32_t*>(in.offsets)[i];
}

OffsetsRead read_offsets(const LookupInput& in, int64_t first, int64_t bags, int64_t* out) {
  if (in.offsets == nullptr) {
    for (int64_t i = 0; i <= bags; ++i) out[i] = (first + i) * in.ids_per_bag;
  } else if (in.offsets_are_64bit) {
    copy_offsets(static_cast<const int64_t*>(in.offsets) + first, bags + 1, out);
  } else {
    copy_offsets(static_cast<const int32_t*>(in.offsets) + first, bags + 1, out);
  }
  int64_t descents = 0;
  int64_t others = 0;  // bags of another length than 1
  for (int64_t i = 0; i < bags; ++i) {
    descents += out[i] > out[i + 1] ? 1 : 0;
    others += out[i + 1] - out[i] != 1 ? 1 : 0;
  }
  if (descents == 0 && out[0] >= 0 && out[bags] <= in.num_ids) return {-1, others == 0};
  int64_t bad = out[0] < 0 || out[0] > in.num_ids ? 0 : 1;
  while (bad > 0 && bad < bags && out[bad - 1] <= out[bad] && out[bad] <= in.num_ids) ++bad;
  return {first + bad, others == 0};
}

void throw_bad_offset(const LookupInput& in, int64_t i) {
  const std::string got = std::to_string(offset_at(in, i));
  const std::string before = i > 0 ? std::to_string(offset_at(in, i - 1)) : "0";
  throw std::invalid_argument("offsets: expected ascending values from 0 to the number of ids " +
                              std::to_string(in.num_ids) + ", got offsets[" + std::to_string(i) + "] = " + got +
                              " after " + before);
}

void check_ends(const LookupInput& in, int64_t features, bool unpooled) {
  const int64_t end = unpooled ? features : features * in.batch_size;
  if (offset_at(in, 0) != 0) {
    throw std::invalid_argument("offsets: expected offsets[0] = 0, got " + std::to_string(offset_at(in, 0)));
  }
  if (offset_at(in, end) != in.num_ids) {
    throw std::invalid_argument("offsets: expected the last offset to be the number of ids " +
                                std::to_string(in.num_ids) + ", got " + std::to_string(offset_at(in, end)));
  }
  for (int64_t f = 1; unpooled && f <= features; ++f) {
    if (offset_at(in, f) < offset_at(in, f - 1)) throw_bad_offset(in, f);
  }
}

void throw_bad_id(const TableSpec& spec, const void* ids, bool ids_are_64bit, int64_t position) {
  const int64_t id =
      ids_are_64bit ? static_cast<const int64_t*>(ids)[position] : static_cast<const int32_t*>(ids)[position];
  throw std::out_of_range("ids: expected 0 <= id < " + std::to_string(spec.num_embeddings) + " for table '" +
                          spec.name + "', got id " + std::to_string(id) + " at position " + std::to_string(position));
}

}  // namespace cpr
