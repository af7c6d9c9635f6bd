// Part of kernels: a snapshot of tables in device memory (snapshot_args.hpp).

// The table of a tile.
CPR_BODY int64_t table_of_tile(const int64_t* first_tile, int64_t num_tables, int64_t tile) {
  int64_t low = 0;
  int64_t high = num_tables;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

struct TileRows {
  int64_t begin;
  int64_t end;
};

CPR_BODY TileRows rows_of_tile(const TableView& t, int64_t tile, int64_t tile_rows) {
  const int64_t begin = tile * tile_rows;
  return {begin, begin + tile_rows < t.num_rows ? begin + tile_rows : t.num_rows};
}

template <typename G>
CPR_BODY void tally_body(const G& g, const SnapshotArgs& a) {
  const int64_t begin = a.first_tile[a.first_table];
  for (int64_t tile = begin + g.index(); tile < a.first_tile[a.end_table]; tile += g.count()) {
    const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
    const TableView& t = a.tables[table].view;
    const TileRows rows = rows_of_tile(t, tile - a.first_tile[table], a.tile_rows);
    uint32_t* out = a.partial + (tile % a.copies * a.num_tables + table) * kTallySize;
    typename G::template PerLane<uint32_t> dirty;
    typename G::template PerLane<uint32_t> listed;
    g.each([&](int lane) {
      for (int64_t row = rows.begin + lane; row < rows.end; row += G::kLanes) {
        const uint32_t word = meta_of(t, row)->word;
        const int32_t count = count_bucket(word & kCountMask);
        if (count != 0) add_relaxed(out + count, 1U);
        const int32_t drift = t.track_drift ? drift_bucket(drift_of(t, row, word)) : 0;
        if (drift != 0) add_relaxed(out + kTallyDrifts + drift, 1U);
        dirty[lane] += (word & kDirtyBit) != 0 ? 1 : 0;
        listed[lane] += t.ssu.slots != nullptr && is_listed(t.ssu, row, word) ? 1 : 0;
      }
    });
    const uint32_t all_dirty = g.sum(dirty);
    const uint32_t all_listed = g.sum(listed);
    g.each([&](int lane) {
      if (lane != 0) return;
      if (all_dirty != 0) add_relaxed(out + kTallyDirty, all_dirty);
      if (all_listed != 0) add_relaxed(out + kTallyListed, all_listed);
    });
  }
}

// One group a table.
template <typename G>
CPR_BODY void reduce_tally_body(const G& g, const SnapshotArgs& a) {
  for (int64_t table = a.first_table + g.index(); table < a.end_table; table += g.count()) {
    int64_t* out = a.tallies + table * kTallySize;
    typename G::template PerLane<int64_t> counts;
    typename G::template PerLane<int64_t> drifts;
    g.each([&](int lane) {
      for (int b = lane; b < kTallySize; b += G::kLanes) {
        int64_t sum = 0;
        for (int64_t copy = 0; copy < a.copies; ++copy) {
          sum += a.partial[(copy * a.num_tables + table) * kTallySize + b];
        }
        out[b] = sum;
        if (b < kTallyDrifts) counts[lane] += sum;
        if (b >= kTallyDrifts && b < kTallyDirty) drifts[lane] += sum;
      }
    });
    const int64_t counted = g.sum(counts);
    const int64_t drifted = g.sum(drifts);
    g.sync();
    g.each([&](int lane) {
      if (lane != 0) return;
      out[0] = a.tables[table].view.num_rows - counted;
      out[kTallyDrifts] = a.tables[table].view.num_rows - drifted;
    });
  }
}

// The snapshot begins: every row of the tables that take part is unsettled from here on. One lane a table.
template <typename G>
CPR_BODY void arm_body(const G& g, const SnapshotArgs& a) {
  for (int64_t table = g.index(); table < a.num_tables; table += g.count()) {
    g.each([&](int lane) {
      if (lane != 0) return;
      TableView& t = a.tables[table].view;
      SelectRule rule = a.rules[table];
      const int64_t* tally = a.tallies + table * kTallySize;
      if (rule.kind == Select::kMostUsed) {
        a.expected[table] = choose_highest(tally, kCountBuckets, a.quotas[table], &rule);
      } else if (rule.kind == Select::kMostDrifted) {
        a.expected[table] = choose_highest(tally + kTallyDrifts, kDriftBuckets, a.quotas[table], &rule);
      }
      t.rule = rule;
      if (rule.kind == Select::kNone) return;
      t.parity_bit = parity_bit_of(rule.kind);
      t.parity ^= t.parity_bit;
    });
  }
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane == 0) *a.cursor = 0;
  });
}

// The snapshot is given up: what is unsettled is taken by nobody.
template <typename G>
CPR_BODY void disarm_body(const G& g, const SnapshotArgs& a) {
  for (int64_t table = g.index(); table < a.num_tables; table += g.count()) {
    g.each([&](int lane) {
      if (lane == 0) a.tables[table].view.rule.kind = Select::kNone;
    });
  }
}

// Whether a row must be visited: snapshots that choose by trackers pass clean rows over.
CPR_BODY bool is_to_settle(const TableView& t, uint32_t word) {
  return is_unsettled(t, word) && (t.parity_bit != kParityBit || !is_clean(t, word));
}

CPR_BODY bool is_to_take(const TableView& t, int64_t row, uint32_t word) {
  return is_to_settle(t, word) && is_pending(t, row, word, t.track_drift ? drift_of(t, row, word) : 0.0F);
}

// Rows of each tile from the cursor on that are to be taken.
template <typename G>
CPR_BODY void count_body(const G& g, const SnapshotArgs& a) {
  const int64_t tiles = a.first_tile[a.num_tables];
  const int64_t cursor = *a.cursor;
  for (int64_t tile = g.index(); tile <= tiles; tile += g.count()) {
    typename G::template PerLane<uint32_t> found;
    if (tile >= cursor && tile < tiles) {
      const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
      const TableView& t = a.tables[table].view;
      const TileRows rows = rows_of_tile(t, tile - a.first_tile[table], a.tile_rows);
      g.each([&](int lane) {
        for (int64_t row = rows.begin + lane; row < rows.end; row += G::kLanes) {
          found[lane] += is_to_take(t, row, meta_of(t, row)->word) ? 1 : 0;
        }
      });
    }
    const uint32_t count = g.sum(found);
    g.each([&](int lane) {
      if (lane == 0) a.counts[tile] = count;
    });
  }
}

// Where the records of a tile begin, counted from the cursor's.
CPR_BODY uint64_t bytes_before(const SnapshotArgs& a, int64_t tile) {
  const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
  const uint64_t records = a.sums[tile] - a.sums[a.first_tile[table]];
  return a.table_bytes[table] + records * static_cast<uint64_t>(record_bytes(a.tables[table].view.format));
}

// The tiles that fit into the piece. One lane.
template <typename G>
CPR_BODY void place_body(const G& g, const SnapshotArgs& a) {
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane != 0) return;
    uint64_t bytes = 0;
    for (int64_t table = 0; table < a.num_tables; ++table) {
      const TableView& t = a.tables[table].view;
      const uint64_t records = a.sums[a.first_tile[table + 1]] - a.sums[a.first_tile[table]];
      const bool chosen = t.rule.kind == Select::kMostUsed || t.rule.kind == Select::kMostDrifted;
      if (a.first && !chosen) a.expected[table] = static_cast<int64_t>(records);
      a.table_bytes[table] = bytes;
      bytes += records * static_cast<uint64_t>(record_bytes(t.format));
    }
    const int64_t tiles = a.first_tile[a.num_tables];
    int64_t low = *a.cursor;  // the tiles before it fit
    int64_t high = a.advances ? tiles : low;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      const uint64_t end = middle == tiles ? bytes : bytes_before(a, middle);
      if (end <= a.capacity) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const uint64_t taken = !a.advances ? 0 : low == tiles ? bytes : bytes_before(a, low);
    *a.piece = {*a.cursor, low, taken};
    *a.cursor = low;
  });
}

// Settles the rows of the piece's tiles and writes the heads of the records of those that are taken.
template <typename G>
CPR_BODY void take_body(const G& g, const SnapshotArgs& a) {
  const PieceHead piece = *a.piece;
  for (int64_t tile = piece.begin + g.index(); tile < piece.end; tile += g.count()) {
    const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
    const TableView& t = a.tables[table].view;
    const TileRows rows = rows_of_tile(t, tile - a.first_tile[table], a.tile_rows);
    const int64_t stride = record_bytes(t.format);
    char* record = a.records + bytes_before(a, tile);
    for (int64_t first = rows.begin; first < rows.end; first += G::kLanes) {
      typename G::template PerLane<uint32_t> taken;
      g.each([&](int lane) {
        const int64_t row = first + lane;
        taken[lane] = row < rows.end && is_to_take(t, row, meta_of(t, row)->word) ? 1 : 0;
      });
      const auto before = g.sum_before(taken);
      g.each([&](int lane) {
        const int64_t row = first + lane;
        if (row >= rows.end) return;
        uint32_t* cell = &meta_of(t, row)->word;
        const uint32_t word = *cell;
        if (!is_to_settle(t, word)) return;
        *cell = settled_word(t.rule, t.parity_bit, word, taken[lane] != 0);
        if (taken[lane] == 0) return;
        const float drift = t.track_drift ? drift_of(t, row, word) : 0.0F;
        *reinterpret_cast<RecordHead*>(record + before[lane] * stride) = {
            static_cast<uint32_t>(row), static_cast<uint32_t>(table), recorded_word(t, row, word), drift};
      });
      record += g.sum(taken) * stride;
    }
  }
}

inline constexpr int64_t kGatherParts = 32;  // groups that share the records of a tile

template <typename G>
CPR_BODY void gather_body(const G& g, const SnapshotArgs& a) {
  const PieceHead piece = *a.piece;
  for (int64_t unit = piece.begin * kGatherParts + g.index(); unit < piece.end * kGatherParts; unit += g.count()) {
    const int64_t tile = unit / kGatherParts;
    const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
    const TableView& t = a.tables[table].view;
    const int64_t stride = record_bytes(t.format);
    char* records = a.records + bytes_before(a, tile);
    for (int64_t i = unit % kGatherParts; i < a.counts[tile]; i += kGatherParts) {
      char* record = records + i * stride;
      fill_record(g, t, reinterpret_cast<const RecordHead*>(record)->row, record);
    }
  }
}

// Updates record rows in other memory from here on.
template <typename G>
CPR_BODY void open_area_body(const G& g, const SnapshotArgs& a) {
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane == 0) *a.area = {a.records, a.capacity, 0, ~uint64_t{0}};
  });
}

template <typename G>
CPR_BODY void snapshot_body(const G& g, const SnapshotArgs& a) {
  switch (a.step) {
    case SnapshotStep::kTally:
      return tally_body(g, a);
    case SnapshotStep::kReduce:
      return reduce_tally_body(g, a);
    case SnapshotStep::kArm:
      return arm_body(g, a);
    case SnapshotStep::kDisarm:
      return disarm_body(g, a);
    case SnapshotStep::kOpen:
      return open_area_body(g, a);
    case SnapshotStep::kCount:
      return count_body(g, a);
    case SnapshotStep::kPlace:
      return place_body(g, a);
    case SnapshotStep::kTake:
      return take_body(g, a);
    case SnapshotStep::kGather:
      return gather_body(g, a);
  }
}
