// Part of kernels: a snapshot of tables in device memory (snapshot_args.hpp).

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

// Updates record rows in other memory from here on. One lane.
CPR_BODY void open_area(const SnapshotArgs& a) { *a.area = {a.records, a.capacity, 0, ~uint64_t{0}}; }

// The snapshot begins: every row of the tables that take part is unsettled from here on. One lane a table.
template <typename G>
CPR_BODY void arm_body(const G& g, const SnapshotArgs& a) {
  for (int64_t table = g.index(); table < a.num_tables; table += g.count()) {
    g.each([&](int lane) {
      if (lane != 0) return;
      TableView& t = a.tables[table].view;
      SelectRule rule = a.requests[table].rule;
      const int64_t quota = a.requests[table].quota;
      const int64_t* tally = a.tallies + table * kTallySize;
      if (rule.kind == Select::kMostUsed) {
        a.expected[table] = choose_highest(tally, kCountBuckets, quota, &rule);
      } else if (rule.kind == Select::kMostDrifted) {
        a.expected[table] = choose_highest(tally + kTallyDrifts, kDriftBuckets, quota, &rule);
      }
      t.rule = rule;
      if (rule.kind == Select::kNone) return;
      t.parity_bit = parity_bit_of(rule.kind);
      t.parity ^= t.parity_bit;
    });
  }
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane != 0) return;
    *a.cursor = 0;
    *a.begun_after = *a.steps_done;
    open_area(a);
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

template <typename G>
CPR_BODY void open_area_body(const G& g, const SnapshotArgs& a) {
  if (g.index() != 0) return;
  g.each([&](int lane) {
    if (lane == 0) open_area(a);
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
