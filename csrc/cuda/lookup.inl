// Part of kernels: checks a bag's ids and offsets, writes its keys, pools it. A group works on one bag. A bag with a
// bad id or offset is NaN, and its error is noted for the host; all that it may read has been checked.

inline constexpr int kLongLevels = 6;  // of chunk sums: 32^7 > 2^31 items

struct Bag {
  int64_t number = 0;
  int64_t feature = 0;
  int64_t begin = 0;  // of its ids
  int64_t end = 0;
};

CPR_BODY int64_t integer_at(const void* values, bool is_64bit, int64_t i) {
  return is_64bit ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
}

CPR_BODY void note_error(DeviceState* state, uint64_t* which, int64_t position, int64_t value) {
  min_relaxed(which, pack_error(position, value));
  store_relaxed(&state->failed, 1);
  store_for_host(state->settings.failed_on_host, 1);
}

// Of each lookup a position is one lane's. What an earlier lookup noted of the same one stays.
CPR_BODY void note_bad_id(DeviceState* state, int64_t table, int64_t position, int64_t id) {
  if (load_acquire(&state->bad_position) <= static_cast<uint64_t>(position)) return;
  min_relaxed(&state->bad_position, static_cast<uint32_t>(position));
  note_error(state, &state->bad_id, position, id);
  min_relaxed(&state->bad_table, (static_cast<uint64_t>(position) << 32) | static_cast<uint64_t>(table));
}

// Offset i, checked against its bounds and its neighbour before.
template <typename G>
CPR_BODY bool check_offset(const G& g, const LookupArgs& a, int64_t i, int64_t last) {
  const int64_t value = integer_at(a.offsets, a.offsets_are_64bit, i);
  const int64_t before = i == 0 ? 0 : integer_at(a.offsets, a.offsets_are_64bit, i - 1);
  const bool good =
      value >= before && value >= 0 && value <= a.num_ids && (i > 0 || value == 0) && (i < last || value == a.num_ids);
  if (good) return true;
  g.each([&](int lane) {
    if (lane == 0) note_error(a.state, &a.state->bad_offset, i, value);
  });
  return false;
}

// Without pooling: the feature of a position, the last one that begins at or before it.
CPR_BODY int64_t feature_at(const LookupArgs& a, int64_t position) {
  int64_t low = 0;
  int64_t high = a.num_features;  // the answer is in [low, high)
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (integer_at(a.offsets, a.offsets_are_64bit, middle) <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// False for bad offsets.
template <typename G>
CPR_BODY bool find_bag(const G& g, const LookupArgs& a, int64_t number, Bag* bag) {
  bag->number = number;
  if (a.unpooled) {
    bag->feature = feature_at(a, number);
    bag->begin = number;
    bag->end = number + 1;
    return true;
  }
  bag->feature = static_cast<uint32_t>(number) / static_cast<uint32_t>(a.batch_size);  // both are below 2^31
  if (a.offsets == nullptr) {
    bag->begin = number * a.ids_per_bag;
    bag->end = bag->begin + a.ids_per_bag;
    return true;
  }
  const bool begins = check_offset(g, a, number, a.bags);
  if (!check_offset(g, a, number + 1, a.bags) || !begins) return false;
  bag->begin = integer_at(a.offsets, a.offsets_are_64bit, number);
  bag->end = integer_at(a.offsets, a.offsets_are_64bit, number + 1);
  return true;
}

// Checks the ids of a bag of table `number` and writes what an update needs of them. False for a bad id.
template <typename T, typename G>
CPR_BODY bool read_ids(const G& g, const LookupArgs& a, const TableRecord& table, int64_t number, const Bag& bag) {
  typename G::template PerLane<bool> bad;
  const bool samples = a.samples && table.view.ssu.slots != nullptr;
  const uint64_t step = static_cast<uint64_t>(a.state->step);
  g.each([&](int lane) {
    for (int64_t p = bag.begin + lane; p < bag.end; p += G::kLanes) {
      const int64_t id = integer_at(a.ids, a.ids_are_64bit, p);
      const bool good = id >= 0 && id < table.view.num_rows;
      if (!good) {
        note_bad_id(a.state, number, p, id);
        bad[lane] = true;
      }
      if (!a.keep) continue;
      const uint64_t row = static_cast<uint64_t>(table.first_row + (good ? id : 0));
      const uint64_t position = static_cast<uint64_t>(p);
      const uint64_t bits =
          samples ? sample_bits(a.sample_key, step, position / 64, a.log2_period) >> (position & 63) & 1 : 0;
      a.batch.keys[p] = (row << 32) | (bits << 31) | position;
      if (a.batch.bag_of != nullptr) a.batch.bag_of[p] = static_cast<uint32_t>(bag.number);
      if (a.weights != nullptr) static_cast<T*>(a.batch.weights)[p] = static_cast<const T*>(a.weights)[p];
    }
    if (lane == 0 && a.keep && a.batch.bag_length != nullptr) {
      a.batch.bag_length[bag.number] = static_cast<uint32_t>(bag.end - bag.begin);
    }
  });
  return !g.any(bad);
}

template <typename T>
CPR_BODY T scale_at(const LookupArgs& a, int64_t p) {
  return a.weights == nullptr ? T{1} : static_cast<const T*>(a.weights)[p];
}

// Items [begin, end), at most 32 of them: one after the other. Of one block of columns several are on their way; more
// of a tile would take registers, and with them groups. The next ids are always.
template <typename T, int kBlocks, typename G>
CPR_BODY void add_items(const LookupArgs& a, const TableView& t, int64_t begin, int64_t end, int lane, int64_t column,
                        Tile<T, kBlocks * G::kWidth>* sum) {
  constexpr int kUnderWay = kBlocks == 1 ? 4 : 1;
  int64_t ids[kUnderWay] = {};
  CPR_UNROLL
  for (int i = 0; i < kUnderWay; ++i) {
    if (begin + i < end) ids[i] = integer_at(a.ids, a.ids_are_64bit, begin + i);
  }
  CPR_ROLLED
  for (int64_t p = begin; p < end; p += kUnderWay) {
    Tile<T, kBlocks * G::kWidth> items[kUnderWay] = {};
    CPR_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      if (p + i < end) read_row<G::kWidth, kBlocks>(t, ids[i], lane, column, &items[i]);
    }
    CPR_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      if (p + kUnderWay + i < end) ids[i] = integer_at(a.ids, a.ids_are_64bit, p + kUnderWay + i);
    }
    CPR_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      if (p + i >= end) continue;
      const T scale = scale_at<T>(a, p + i);
      CPR_UNROLL
      for (int j = 0; j < kBlocks * G::kWidth; ++j) {
        const T x = a.weights == nullptr ? items[i].at[j] : items[i].at[j] * scale;
        sum->at[j] = p + i == begin ? x : sum->at[j] + x;
      }
    }
  }
}

// More than 32 items, one block of columns: the open chunk's sum of every level is kept beside the registers.
template <typename T, typename G>
CPR_BODY void add_long(const LookupArgs& a, const TableView& t, const Bag& bag, int lane, int64_t column,
                       Tile<T, G::kWidth>* out) {
  using Sum = Tile<T, G::kWidth>;
  typename G::template LaneStore<Sum, kLongLevels> open;
  int64_t chunk = 0;
  for (int64_t begin = bag.begin; begin < bag.end; begin += kSumFanout, ++chunk) {
    const int64_t end = begin + kSumFanout < bag.end ? begin + kSumFanout : bag.end;
    Sum sum{};
    add_items<T, 1, G>(a, t, begin, end, lane, column, &sum);
    const bool closes = end == bag.end;  // then every open chunk does, from the lowest level on
    int64_t before = chunk;              // what the level has got
    for (int level = 0; level < kLongLevels && !(closes && before == 0); ++level, before /= kSumFanout) {
      const int64_t held = before % kSumFanout;
      if (held > 0) {
        const Sum earlier = open[level];
        CPR_UNROLL
        for (int j = 0; j < G::kWidth; ++j) sum.at[j] = earlier.at[j] + sum.at[j];
      }
      if (!closes && held != kSumFanout - 1) {
        open[level] = sum;
        break;
      }
    }
    if (closes) *out = sum;
  }
}

template <typename T, typename G>
CPR_BODY void pool_sum(const G& g, const LookupArgs& a, const TableView& t, const Bag& bag, T* out) {
  const int64_t length = bag.end - bag.begin;
  const bool divides = t.pooling == Pooling::kMean && length > 1;
  const T divisor = static_cast<T>(length);
  g.each([&](int lane) {
    if (length > kSumFanout) {
      for (int64_t column = 0; column < t.dim; column += kBlockColumns) {
        Tile<T, G::kWidth> sum{};
        add_long<T, G>(a, t, bag, lane, column, &sum);
        CPR_UNROLL
        for (int j = 0; j < G::kWidth; ++j) sum.at[j] = divides ? sum.at[j] / divisor : sum.at[j];
        write_tile<G::kWidth, 1>(sum, lane, column, t.dim, out);
      }
      return;
    }
    for (int64_t column = 0; column < t.dim; column += kTileColumns) {
      Tile<T, kTileBlocks * G::kWidth> sum{};
      add_items<T, kTileBlocks, G>(a, t, bag.begin, bag.end, lane, column, &sum);
      if (divides) {
        CPR_UNROLL
        for (int j = 0; j < kTileBlocks * G::kWidth; ++j) sum.at[j] = sum.at[j] / divisor;
      }
      write_tile<G::kWidth, kTileBlocks>(sum, lane, column, t.dim, out);
    }
  });
}

// The largest of each element, the first of equal ones; as in torch a NaN is kept only if it comes first.
template <typename T, typename G>
CPR_BODY void pool_max(const G& g, const LookupArgs& a, const TableView& t, const Bag& bag, T* out, uint32_t* argmax) {
  g.each([&](int lane) {
    for (int64_t column = 0; column < t.dim; column += kBlockColumns) {
      Tile<T, G::kWidth> largest{};
      Tile<uint32_t, G::kWidth> where{};
      CPR_UNROLL
      for (int j = 0; j < G::kWidth; ++j) where.at[j] = kNoPosition;
      for (int64_t p = bag.begin; p < bag.end; ++p) {
        Tile<T, G::kWidth> item{};
        read_row<G::kWidth, 1>(t, integer_at(a.ids, a.ids_are_64bit, p), lane, column, &item);
        CPR_UNROLL
        for (int j = 0; j < G::kWidth; ++j) {
          const bool larger = p == bag.begin || item.at[j] > largest.at[j];
          largest.at[j] = larger ? item.at[j] : largest.at[j];
          where.at[j] = larger ? static_cast<uint32_t>(p) : where.at[j];
        }
      }
      write_tile<G::kWidth, 1>(largest, lane, column, t.dim, out);
      if (argmax != nullptr) write_tile<G::kWidth, 1>(where, lane, column, t.dim, argmax);
    }
  });
}

template <typename T, typename G>
CPR_BODY void fill_nan(const G& g, int64_t dim, T* out) {
  const T nan = static_cast<T>(float_from_bits(0x7fc00000U));
  g.each([&](int lane) {
    for (int64_t d = lane; d < dim; d += G::kLanes) out[d] = nan;
  });
}

template <typename T, typename G>
CPR_BODY void lookup_bag(const G& g, const LookupArgs& a, int64_t number) {
  Bag bag;
  const bool found = find_bag(g, a, number, &bag);
  const FeatureRecord& feature = a.features[bag.feature];
  const TableRecord& table = a.tables[feature.table];
  const bool good = found && read_ids<T>(g, a, table, feature.table, bag);
  if (a.out == nullptr) return;
  const int64_t line = a.unpooled ? number : number - bag.feature * a.batch_size;
  const int64_t at = line * a.out_stride + feature.column;
  T* out = static_cast<T*>(a.out) + at;
  if (!good) {
    fill_nan(g, table.view.dim, out);
  } else if (table.view.pooling == Pooling::kMax) {
    pool_max(g, a, table.view, bag, out, a.keep ? a.batch.argmax + at : nullptr);
  } else {
    pool_sum(g, a, table.view, bag, out);
  }
}

template <typename T, typename G>
CPR_BODY void lookup_body(const G& g, const LookupArgs& a) {
  if (a.keep) {
    for (int64_t i = g.index(); i < a.batch.num_arrived; i += g.count()) {
      g.each([&](int lane) {
        if (lane == 0) a.batch.arrived[i] = 0;
      });
    }
  }
  if (a.unpooled) {
    for (int64_t i = g.index(); i <= a.num_features; i += g.count()) check_offset(g, a, i, a.num_features);
  }
  for (int64_t number = g.index(); number < a.bags; number += g.count()) lookup_bag<T>(g, a, number);
}
