// Part of kernels.cpp: the optimizers, each the step of one row given the row's gradient (docs/numerics.md has the
// formulas and their sources). All return the L2 norm of the step where the drift is tracked, else anything.

template <int D>
CPR_INLINE float norm_of(const UpdateArgs& a, const float* step, float scale) {
  return a.table.track_drift ? scale * square_root(sum_of_squares<D>(step, a.table.dim)) : 0.0F;
}

template <int D>
CPR_INLINE float step_sgd(const UpdateArgs& a, const float* g, float* w) {
  subtract_scaled<D>(w, g, a.learning_rate, a.table.dim);
  return norm_of<D>(a, g, a.learning_rate);
}

// FBGEMM's EXACT_ROWWISE_ADAGRAD: state += mean(g^2); w -= lr / (sqrt(state) + eps) * g.
template <int D>
CPR_INLINE float step_row_wise_adagrad(const UpdateArgs& a, int64_t row, const float* g, float* w) {
  RowMeta* meta = meta_of(a.table, row);
  const float squares = sum_of_squares<D>(g, a.table.dim);
  const float state = meta->state + squares / static_cast<float>(fixed_dim<D>(a.table.dim));
  meta->state = state;
  const float rate = row_wise_rate(a.learning_rate, state, a.eps);
  subtract_scaled<D>(w, g, rate, a.table.dim);
  return a.table.track_drift ? rate * square_root(squares) : 0.0F;
}

// Elements that no loop-carried pointer ties together: `step` is scratch of its own.
CPR_INLINE float subtract_step(const UpdateArgs& a, const float* step, float* w) {
  subtract_scaled<0>(w, step, 1.0F, a.table.dim);
  return norm_of<0>(a, step, 1.0F);
}

// torch.optim.Adagrad: sum += g^2; w -= lr * g / (sqrt(sum) + eps).
CPR_INLINE float step_adagrad(const UpdateArgs& a, int64_t row, const float* __restrict__ g, float* w,
                              float* __restrict__ step) {
  const int64_t dim = a.table.dim;
  float* __restrict__ sum = a.table.arrays[0].data + row * dim;
  for (int64_t d = 0; d < dim; ++d) {
    sum[d] = adagrad_sum(sum[d], g[d]);
    step[d] = adagrad_step(a.learning_rate, g[d], sum[d], a.eps);
  }
  return subtract_step(a, step, w);
}

// Adam (Kingma and Ba, 2015) of the rows of the batch, as torch.optim.SparseAdam is: m += (1 - b1) * (g - m) written as
// b1 * m + (1 - b1) * g, v likewise; w -= lr * (m / c1) / (sqrt(v / c2) + eps).
CPR_INLINE float step_adam(const UpdateArgs& a, int64_t row, const float* __restrict__ g, float* w,
                           float* __restrict__ step) {
  const int64_t dim = a.table.dim;
  float* __restrict__ m = a.table.arrays[0].data + row * dim;
  float* __restrict__ v = a.table.arrays[1].data + row * dim;
  for (int64_t d = 0; d < dim; ++d) {
    m[d] = moved_moment(a.beta1, a.gain1, m[d], g[d]);
    v[d] = moved_moment(a.beta2, a.gain2, v[d], g[d] * g[d]);
    step[d] = adam_step(a.learning_rate, m[d], a.correction1, adam_denominator(v[d], a.correction2, a.eps));
  }
  return subtract_step(a, step, w);
}

// FBGEMM's PARTIAL_ROWWISE_ADAM: Adam with one v a row, of the mean of g^2.
CPR_INLINE float step_partial_row_wise_adam(const UpdateArgs& a, int64_t row, const float* __restrict__ g, float* w,
                                            float* __restrict__ step) {
  const int64_t dim = a.table.dim;
  RowMeta* meta = meta_of(a.table, row);
  const float mean = sum_of_squares<0>(g, dim) / static_cast<float>(dim);
  const float v = moved_moment(a.beta2, a.gain2, meta->state, mean);
  meta->state = v;
  const float denominator = adam_denominator(v, a.correction2, a.eps);
  float* __restrict__ m = a.table.arrays[0].data + row * dim;
  for (int64_t d = 0; d < dim; ++d) {
    m[d] = moved_moment(a.beta1, a.gain1, m[d], g[d]);
    step[d] = adam_step(a.learning_rate, m[d], a.correction1, denominator);
  }
  return subtract_step(a, step, w);
}

// `scratch`: kScratchRows rows.
template <int D, Optimizer kOptimizer>
CPR_INLINE float optimise_row(const UpdateArgs& a, int64_t row, const float* g, float* scratch) {
  const int64_t dim = fixed_dim<D>(a.table.dim);
  const DType dtype = D > 0 ? DType::kFloat32 : a.table.format.dtype;
  float* step = scratch;
  float* w = floats_of(a.table, row);
  if (dtype != DType::kFloat32) {
    w = scratch + dim;
    load_floats(weight_bytes_of(a.table, row), dtype, dim, w);
  }
  if (a.weight_decay != 0.0F) {
    float* decayed = scratch + 2 * dim;
    copy_row<D>(decayed, g, dim);
    add_scaled<D>(decayed, w, a.weight_decay, dim);
    g = decayed;
  }
  float norm = 0.0F;
  if constexpr (kOptimizer == Optimizer::kSgd) norm = step_sgd<D>(a, g, w);
  if constexpr (kOptimizer == Optimizer::kRowWiseAdagrad) norm = step_row_wise_adagrad<D>(a, row, g, w);
  if constexpr (kOptimizer == Optimizer::kAdagrad) norm = step_adagrad(a, row, g, w, step);
  if constexpr (kOptimizer == Optimizer::kAdam) norm = step_adam(a, row, g, w, step);
  if constexpr (kOptimizer == Optimizer::kPartialRowWiseAdam) norm = step_partial_row_wise_adam(a, row, g, w, step);
  if (dtype != DType::kFloat32) {
    const uint64_t key = hash2(a.rounding_key, static_cast<uint64_t>(row + a.table.row_offset));
    store_stochastic(w, dtype, dim, key, weight_bytes_of(a.table, row));
  }
  return norm;
}
