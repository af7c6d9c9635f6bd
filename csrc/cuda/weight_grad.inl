// Part of kernels: the gradient of per-sample weights, for each id the dot product of its bag's output gradient and its
// row. Lane = element mod 32, each in order, then neighbours pairwise, as the sum of squares.

template <typename T, typename G>
CPR_BODY T dot_of(const G& g, const TableView& t, int64_t row, const T* grad) {
  typename G::template PerLane<T> sums;
  g.each([&](int lane) {
    Tile<T, G::kWidth> dots{};
    for (int64_t column = 0; column < t.dim; column += kBlockColumns) {
      Tile<T, G::kWidth> x{};
      Tile<T, G::kWidth> y{};
      read_tile<G::kWidth, 1>(grad, lane, column, t.dim, &x);
      read_row<G::kWidth, 1>(t, row, lane, column, &y);
      CPR_UNROLL
      for (int j = 0; j < G::kWidth; ++j) dots.at[j] = dots.at[j] + x.at[j] * y.at[j];
    }
    sums[lane] = sum_pairs(dots);
  });
  return g.sum(sums);
}

template <typename T, typename G>
CPR_BODY void weight_grad_body(const G& g, const WeightGradArgs& a) {
  T* out = static_cast<T*>(a.out);
  const bool failed = a.state->failed != 0;  // then keys may be anything
  for (int64_t p = g.index(); p < a.num_ids; p += g.count()) {
    T dot = static_cast<T>(float_from_bits(0x7fc00000U));
    if (!failed) {
      const int64_t bag = a.batch.bag_of[p];
      const int64_t feature = static_cast<uint32_t>(bag) / static_cast<uint32_t>(a.batch_size);
      const FeatureRecord& record = a.features[feature];
      const TableRecord& table = a.tables[record.table];
      const T* grad = static_cast<const T*>(a.grad) + (bag - feature * a.batch_size) * a.grad_stride + record.column;
      dot = dot_of<T>(g, table.view, static_cast<int64_t>(a.batch.keys[p] >> 32) - table.first_row, grad);
    }
    g.each([&](int lane) {
      if (lane == 0) out[p] = dot;
    });
  }
}
