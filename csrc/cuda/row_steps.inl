// Part of kernels: rows and trackers outside of updates (row_args.hpp says what each step does).

// Weight and state of a row from or to packed memory.
template <typename G>
CPR_BODY void move_row(const G& g, const TableView& t, int64_t row, int64_t item, const RowArgs& a, bool to_table) {
  const int64_t bytes = weight_bytes(t.format);
  if (a.weight != nullptr) {
    char* packed = a.weight + item * bytes;
    if (to_table) {
      copy_bytes(g, weight_bytes_of(t, row), packed, bytes);
    } else {
      copy_bytes(g, packed, weight_bytes_of(t, row), bytes);
    }
  }
  if (a.state == nullptr) return;
  float* packed = a.state + item * t.format.state_size;
  if (!to_table) return copy_state(g, t, row, packed);
  for (int array = 0; array < t.num_arrays; ++array) {
    const int64_t columns = t.arrays[array].columns;
    copy_bytes(g, t.arrays[array].data + row * columns, packed, columns * static_cast<int64_t>(sizeof(float)));
    packed += columns;
  }
  if (!t.state_of_row) return;
  g.each([&](int lane) {
    if (lane == 0) meta_of(t, row)->state = *packed;
  });
}

// NaN, as 2-byte patterns of which every item of any type is made.
template <typename G>
CPR_BODY void discard_row(const G& g, const TableView& t, int64_t row) {
  g.each([&](int lane) {
    char* w = weight_bytes_of(t, row);
    for (int64_t d = lane; d < t.dim; d += G::kLanes) {
      switch (t.format.dtype) {
        case DType::kFloat64:
          reinterpret_cast<uint64_t*>(w)[d] = 0x7ff8000000000000ULL;
          break;
        case DType::kFloat32:
          reinterpret_cast<uint32_t*>(w)[d] = 0x7fc00000U;
          break;
        default:  // of both half formats
          reinterpret_cast<uint16_t*>(w)[d] = 0x7fffU;
      }
    }
    for (int array = 0; array < t.num_arrays; ++array) {
      float* values = t.arrays[array].data + row * t.arrays[array].columns;
      for (int64_t c = lane; c < t.arrays[array].columns; c += G::kLanes) values[c] = float_from_bits(0x7fc00000U);
    }
    if (lane == 0 && t.state_of_row) meta_of(t, row)->state = float_from_bits(0x7fc00000U);
  });
}

// A row that a snapshot may still choose keeps its parity.
CPR_BODY void mark_row(const TableView& t, int64_t row) {
  uint32_t* cell = &meta_of(t, row)->word;
  *cell = (is_clean(t, *cell) ? with_parity(t, *cell) : *cell) | kDirtyBit;
}

CPR_BODY void merge_word(const TableView& t, int64_t row, uint32_t taken, float drift) {
  const uint32_t word = add_count(read_word(t, row), taken & kCountMask) | (taken & (kDirtyBit | kListedBit));
  write_word(t, row, word, add_drift(read_drift(t, row), drift));
}

// What one lane does for a row and its place among the call's.
CPR_BODY void row_step(const RowArgs& a, const TableView& t, int64_t row, int64_t item) {
  switch (a.step) {
    case RowStep::kWrite:
      return write_word(t, row, a.word, 0.0F);
    case RowStep::kPut:
      return write_word(t, row, read_word(t, row) | a.word, read_drift(t, row));
    case RowStep::kMark:
      return mark_row(t, row);
    case RowStep::kMerge:
      return merge_word(t, row, a.words[item], a.drifts == nullptr ? 0.0F : a.drifts[item]);
    case RowStep::kReset:
    case RowStep::kKeep:
      return write_word(t, row, read_word(t, row) & a.word, 0.0F);
    case RowStep::kMarkAll:
      meta_of(t, row)->word = with_parity(t, meta_of(t, row)->word) | kDirtyBit;
      return;
    case RowStep::kClear:
      return write_word(t, row, 0, read_drift(t, row));
    case RowStep::kClaimSlots:
      if ((a.words[item] & kListedBit) != 0) min_relaxed(ssu_slot_of(t.ssu, row), static_cast<uint32_t>(row));
      return;
    case RowStep::kReplace: {
      const uint32_t kept = kParityBits | kVoidDriftBit;
      uint32_t* cell = &meta_of(t, row)->word;
      *cell = with_parity(t, (*cell & kept) | (a.words[item] & ~kept));
      return;
    }
    case RowStep::kReadWords:
      a.words[item] = read_word(t, row);
      return;
    case RowStep::kReadDrifts:
      a.drifts[item] = read_drift(t, row);
      return;
    case RowStep::kWriteDrifts:
      return write_drift(t, row, add_drift(a.drifts[item], 0.0F));
    case RowStep::kReadListed: {  // `row`: of the slots
      const uint32_t holder = t.ssu.slots[row];
      const bool listed = holder != kEmptySlot && is_listed(t.ssu, holder, meta_of(t, holder)->word);
      a.words[item] = listed ? holder : kEmptySlot;
      return;
    }
    default:
      return;
  }
}

template <typename G>
CPR_BODY void row_step_body(const G& g, const RowArgs& a) {
  const TableView& t = a.table->view;
  const bool moves = a.step == RowStep::kWrite || a.step == RowStep::kPut || a.step == RowStep::kRead ||
                     a.step == RowStep::kReadState || a.step == RowStep::kReset || a.step == RowStep::kDiscard;
  for (int64_t item = g.index(); moves && item < a.n; item += g.count()) {
    const int64_t row = a.rows != nullptr ? a.rows[item] : a.begin + item;
    if (a.step == RowStep::kReset) {
      initialise_row(g, t, row, a.table->key, a.low, a.high, a.initial_state);
    } else if (a.step == RowStep::kDiscard) {
      discard_row(g, t, row);
    } else {
      move_row(g, t, row, item, a, a.step == RowStep::kWrite || a.step == RowStep::kPut);
    }
  }
  if (a.step == RowStep::kRead || a.step == RowStep::kReadState || a.step == RowStep::kDiscard) return;
  for (int64_t first = g.index() * G::kLanes; first < a.n; first += g.count() * G::kLanes) {
    g.each([&](int lane) {
      const int64_t item = first + lane;
      if (item < a.n) row_step(a, t, a.rows != nullptr ? a.rows[item] : a.begin + item, item);
    });
  }
}
