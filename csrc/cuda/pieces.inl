// Part of kernels: the pieces of a snapshot (snapshot_args.hpp): counted, placed, taken and gathered.

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

CPR_BODY int64_t clamped(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

struct TileRows {
  int64_t begin;
  int64_t end;
};

CPR_BODY TileRows rows_of_tile(const TableView& t, int64_t tile, int64_t tile_rows) {
  const int64_t begin = tile * tile_rows;
  return {begin, begin + tile_rows < t.num_rows ? begin + tile_rows : t.num_rows};
}

// Whether a row must be visited: snapshots that choose by trackers pass clean rows over.
CPR_BODY bool is_to_settle(const TableView& t, uint32_t word) {
  return is_unsettled(t, word) && (t.parity_bit != kParityBit || !is_clean(t, word));
}

CPR_BODY bool is_to_take(const TableView& t, int64_t row, uint32_t word) {
  return is_to_settle(t, word) && is_pending(t, row, word, t.track_drift ? drift_of(t, row, word) : 0.0F);
}

// Rows of each tile that are to be taken. Updates meet rows meanwhile, so what was counted for an earlier piece is too
// much; tiles that this piece can't reach keep it.
template <typename G>
CPR_BODY void count_body(const G& g, const SnapshotArgs& a) {
  const int64_t tiles = a.first_tile[a.num_tables];
  const int64_t end = a.whole ? tiles : *a.limit;
  for (int64_t tile = *a.cursor + g.index(); tile < end; tile += g.count()) {
    typename G::template PerLane<uint32_t> found;
    const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
    const TableView& t = a.tables[table].view;
    const TileRows rows = rows_of_tile(t, tile - a.first_tile[table], a.tile_rows);
    g.each([&](int lane) {
      for (int64_t row = rows.begin + lane; row < rows.end; row += G::kLanes) {
        found[lane] += is_to_take(t, row, meta_of(t, row)->word) ? 1 : 0;
      }
    });
    const uint32_t count = g.sum(found);
    g.each([&](int lane) {
      if (lane == 0) a.counts[tile] = count;
    });
  }
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane == 0) a.counts[tiles] = 0;
  });
}

// Records of a table's tiles in [begin, end).
CPR_BODY int64_t records_between(const SnapshotArgs& a, int64_t table, int64_t begin, int64_t end) {
  const int64_t from = clamped(a.first_tile[table], begin, end);
  const int64_t to = clamped(a.first_tile[table + 1], begin, end);
  return a.sums[to] - a.sums[from];
}

// Bytes of the records of the tiles in [begin, tile); `begin` is the cursor's.
CPR_BODY uint64_t bytes_before(const SnapshotArgs& a, int64_t begin, int64_t tile) {
  const int64_t tiles = a.first_tile[a.num_tables];
  const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile < tiles ? tile : tiles - 1);
  const int64_t records = records_between(a, table, begin, tile);
  return a.table_bytes[table] + static_cast<uint64_t>(records * record_bytes(a.tables[table].view.format));
}

// The last tile in [low, high] up to which the bytes from `begin` on are at most `most`.
CPR_BODY int64_t tile_within(const SnapshotArgs& a, int64_t begin, int64_t low, int64_t high, uint64_t most) {
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (bytes_before(a, begin, middle) <= most) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The tiles that fit into the piece, and those that may fit into the next. One lane.
template <typename G>
CPR_BODY void place_body(const G& g, const SnapshotArgs& a) {
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane != 0) return;
    const int64_t tiles = a.first_tile[a.num_tables];
    const int64_t begin = *a.cursor;
    uint64_t bytes = 0;
    for (int64_t table = 0; table < a.num_tables; ++table) {
      const TableView& t = a.tables[table].view;
      const int64_t records = records_between(a, table, begin, tiles);
      const bool chosen = t.rule.kind == Select::kMostUsed || t.rule.kind == Select::kMostDrifted;
      if (a.first && !chosen) a.expected[table] = records;
      a.table_bytes[table] = bytes;
      bytes += static_cast<uint64_t>(records * record_bytes(t.format));
    }
    const int64_t counted = a.whole ? tiles : *a.limit;
    const int64_t end = a.advances ? tile_within(a, begin, begin, counted, a.capacity) : begin;
    const uint64_t taken = bytes_before(a, begin, end);
    for (int64_t table = 0; table < a.num_tables; ++table) {
      a.piece_records[table] = records_between(a, table, begin, end);
    }
    // Twice what fits: some will have been met by updates. A tile fits always.
    *a.limit = tile_within(a, begin, end < tiles ? end + 1 : end, tiles, taken + 2 * a.capacity);
    *a.piece = {begin, end, taken};
    *a.cursor = end;
  });
}

// The records of a tile among those of its table in the piece.
struct TileRecords {
  int64_t table;
  int64_t first;
  PieceBlocks blocks;
};

CPR_BODY TileRecords records_of_tile(const SnapshotArgs& a, const PieceHead& piece, int64_t tile) {
  const int64_t table = table_of_tile(a.first_tile, a.num_tables, tile);
  const int64_t all = records_between(a, table, piece.begin, piece.end);
  return {table, records_between(a, table, piece.begin, tile),
          piece_blocks(a.tables[table].view.format, static_cast<int64_t>(a.table_bytes[table]), all)};
}

// Settles the rows of the piece's tiles and writes the heads of the records of those that are taken.
template <typename G>
CPR_BODY void take_body(const G& g, const SnapshotArgs& a) {
  const PieceHead piece = *a.piece;
  for (int64_t tile = piece.begin + g.index(); tile < piece.end; tile += g.count()) {
    const TileRecords records = records_of_tile(a, piece, tile);
    const TableView& t = a.tables[records.table].view;
    const TileRows rows = rows_of_tile(t, tile - a.first_tile[records.table], a.tile_rows);
    RecordHead* heads = reinterpret_cast<RecordHead*>(a.records + records.blocks.heads) + records.first;
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
        heads[before[lane]] = {static_cast<uint32_t>(row), static_cast<uint32_t>(records.table),
                               recorded_word(t, row, word), drift};
      });
      heads += g.sum(taken);
    }
  }
}

inline constexpr int64_t kGatherParts = 32;  // groups that share the records of a tile

template <typename G>
CPR_BODY void gather_body(const G& g, const SnapshotArgs& a) {
  const PieceHead piece = *a.piece;
  for (int64_t unit = piece.begin * kGatherParts + g.index(); unit < piece.end * kGatherParts; unit += g.count()) {
    const int64_t tile = unit / kGatherParts;
    const int64_t count = a.counts[tile];
    if (unit % kGatherParts >= count) continue;
    const TileRecords records = records_of_tile(a, piece, tile);
    const TableView& t = a.tables[records.table].view;
    const RecordHead* heads = reinterpret_cast<const RecordHead*>(a.records + records.blocks.heads);
    char* weights = a.records + records.blocks.weights;
    char* states = a.records + records.blocks.states;
    const int64_t weight_size = weight_bytes(t.format);
    const int64_t state_size = t.format.state_size * static_cast<int64_t>(sizeof(float));
    for (int64_t i = records.first + unit % kGatherParts; i < records.first + count; i += kGatherParts) {
      copy_row(g, t, heads[i].row, weights + i * weight_size, reinterpret_cast<float*>(states + i * state_size));
    }
  }
}
