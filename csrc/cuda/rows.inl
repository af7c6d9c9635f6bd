// Part of kernels: moving the columns of rows. A tile is kTileBlocks blocks of 32 columns; a lane holds kWidth of each.

inline constexpr int kTileBlocks = 4;
inline constexpr int64_t kTileColumns = kTileBlocks * kBlockColumns;

template <typename T, int kNumbers>
struct Tile {
  T at[kNumbers];
};

template <typename G, typename T, int kBlocks = kTileBlocks>
using TileOf = typename G::template PerLane<Tile<T, kBlocks * G::kWidth>>;

// Rows lie in global memory. The compiler can't know it of an address that was read from a record, and would load from
// whatever memory it is, which costs an instruction and registers.
template <typename Stored>
CPR_BODY void assume_global([[maybe_unused]] const Stored* row) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(row));
#endif
}

// As many numbers as one instruction moves, at most 16 bytes.
template <typename Stored, int kWidth>
struct alignas(sizeof(Stored) * kWidth > 16 ? 16 : sizeof(Stored) * kWidth) Pack {
  Stored at[kWidth];
};

template <typename Stored, int kWidth>
CPR_BODY bool is_packed(const Stored* row) {
  return reinterpret_cast<uintptr_t>(row) % alignof(Pack<Stored, kWidth>) == 0;
}

// Items [at, at + kWidth) of a row, those from `dim` on as 0. `at` is a multiple of kWidth.
template <int kWidth, typename Stored>
CPR_BODY Pack<Stored, kWidth> read_items(const Stored* row, int64_t at, int64_t dim) {
  assume_global(row);
  Pack<Stored, kWidth> items;
  if (at + kWidth <= dim && is_packed<Stored, kWidth>(row)) {
#if defined(__CUDA_ARCH__)
    items = *reinterpret_cast<const Pack<Stored, kWidth>*>(row + at);
#else
    __builtin_memcpy(&items, row + at, sizeof items);
#endif
    return items;
  }
  CPR_UNROLL
  for (int j = 0; j < kWidth; ++j) items.at[j] = at + j < dim ? row[at + j] : Stored{};
  return items;
}

template <int kWidth, typename Stored>
CPR_BODY void write_items(const Pack<Stored, kWidth>& items, int64_t at, int64_t dim, Stored* row) {
  assume_global(row);
  if (at + kWidth <= dim && is_packed<Stored, kWidth>(row)) {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<Pack<Stored, kWidth>*>(row + at) = items;
#else
    __builtin_memcpy(row + at, &items, sizeof items);
#endif
    return;
  }
  CPR_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    if (at + j < dim) row[at + j] = items.at[j];
  }
}

// Calls body(first number of the tile, first column) for the blocks of the lane that the row has.
template <int kBlocks, int kWidth, typename Body>
CPR_BODY void each_block(int lane, int64_t column, int64_t dim, const Body& body) {
  CPR_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    const int64_t at = column + b * kBlockColumns + lane * kWidth;
    if (column + b * kBlockColumns < dim) body(b * kWidth, at);
  }
}

// Columns from `column` on of a row of Ts, 0 beyond its end.
template <int kWidth, int kBlocks, typename T>
CPR_BODY void read_tile(const T* row, int lane, int64_t column, int64_t dim, Tile<T, kBlocks * kWidth>* out) {
  each_block<kBlocks, kWidth>(lane, column, dim, [&](int first, int64_t at) {
    const Pack<T, kWidth> items = read_items<kWidth>(row, at, dim);
    CPR_UNROLL
    for (int j = 0; j < kWidth; ++j) out->at[first + j] = items.at[j];
  });
}

template <int kWidth, int kBlocks, typename T>
CPR_BODY void write_tile(const Tile<T, kBlocks * kWidth>& tile, int lane, int64_t column, int64_t dim, T* row) {
  each_block<kBlocks, kWidth>(lane, column, dim, [&](int first, int64_t at) {
    Pack<T, kWidth> items;
    CPR_UNROLL
    for (int j = 0; j < kWidth; ++j) items.at[j] = tile.at[first + j];
    write_items<kWidth>(items, at, dim, row);
  });
}

// Neighbours pairwise, until one is left.
template <typename T, int kWidth>
CPR_BODY T sum_pairs(Tile<T, kWidth> x) {
  CPR_UNROLL
  for (int width = kWidth / 2; width > 0; width /= 2) {
    CPR_UNROLL
    for (int j = 0; j < kWidth / 2; ++j) {
      if (j < width) x.at[j] = x.at[2 * j] + x.at[2 * j + 1];
    }
  }
  return x.at[0];
}

// The same of a row of a table, widened: T is float, double for float64 tables.
template <int kWidth, int kBlocks, typename T>
CPR_BODY void read_row(const TableView& t, int64_t row, int lane, int64_t column, Tile<T, kBlocks * kWidth>* out) {
  const char* bytes = weight_bytes_of(t, row);
  const DType dtype = t.format.dtype;
  if constexpr (sizeof(T) == sizeof(float)) {
    if (dtype != DType::kFloat32) {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(bytes);
      each_block<kBlocks, kWidth>(lane, column, t.dim, [&](int first, int64_t at) {
        const Pack<uint16_t, kWidth> items = read_items<kWidth>(halves, at, t.dim);
        CPR_UNROLL
        for (int j = 0; j < kWidth; ++j) {
          out->at[first + j] =
              dtype == DType::kBFloat16 ? float_from_bfloat16(items.at[j]) : float_from_float16(items.at[j]);
        }
      });
      return;
    }
  }
  read_tile<kWidth, kBlocks>(reinterpret_cast<const T*>(bytes), lane, column, t.dim, out);
}

// Into a row, not of float64; of half precision rounded stochastically by `row_key`.
template <int kWidth, int kBlocks>
CPR_BODY void write_row(const TableView& t, int64_t row, uint64_t row_key, int lane, int64_t column,
                        const Tile<float, kBlocks * kWidth>& tile) {
  char* bytes = weight_bytes_of(t, row);
  const DType dtype = t.format.dtype;
  if (dtype == DType::kFloat32) {
    write_tile<kWidth, kBlocks>(tile, lane, column, t.dim, reinterpret_cast<float*>(bytes));
    return;
  }
  each_block<kBlocks, kWidth>(lane, column, t.dim, [&](int first, int64_t at) {
    Pack<uint16_t, kWidth> items;
    CPR_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      const uint32_t bits = element_bits(row_key, static_cast<uint32_t>(at + j));
      items.at[j] = dtype == DType::kBFloat16 ? bfloat16_from_float(tile.at[first + j], bits >> 16)
                                              : float16_from_float(tile.at[first + j], bits >> 19);
    }
    write_items<kWidth>(items, at, t.dim, reinterpret_cast<uint16_t*>(bytes));
  });
}
