// Collection::update and what belongs to it: planning units, sampling, running kernels.
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"
#include "core/steps.hpp"
#include "cpu/thread_pool.hpp"
#include "table/collection.hpp"
#include "table/finite.hpp"

namespace cpr {

namespace {

constexpr int64_t kIdsWorthAThread = 1024;
constexpr int64_t kMinPartitioned = 8192;  // smaller units aren't worth splitting
constexpr uint64_t kRepeatSalt = 0x4dU;

}  // namespace

TableView Collection::update_view(int64_t index) {
  TableView view = table(index).view();
  if (active_ != nullptr && active_->walking()) active_->attach(static_cast<int>(index), &view);
  return view;
}

// The update pass meets at most the batch's rows, and evicts at most as many from the list.
void Collection::reserve_staging(const Batch& batch) {
  if (active_ == nullptr || !active_->walking()) return;
  std::vector<int64_t> needs(tables_.size(), 0);
  for (int64_t f = 0; f < num_features(); ++f) {
    const size_t i = static_cast<size_t>(f);
    needs[static_cast<size_t>(features_[i])] += 2 * (batch.feature_begin[i + 1] - batch.feature_begin[i]);
  }
  active_->reserve(needs);
}

void Collection::reserve_staging(int64_t index, int64_t rows) {
  if (active_ == nullptr || !active_->walking()) return;
  std::vector<int64_t> needs(tables_.size(), 0);
  needs[static_cast<size_t>(index)] = rows;
  active_->reserve(needs);
}

// Splits a table's keys by hash group, stable in position, so that threads share a large table: rows of one group, and
// so of one slot of the list, stay in one unit.
void Collection::partition(Batch* batch, int64_t index, std::vector<cpu::KeySpan> spans, int64_t n, int threads,
                           std::vector<Unit>* units) {
  table(index).enter_deferred();
  const SsuView ssu = table(index).view().ssu;
  const int parts = std::min<int>(64, static_cast<int>(std::bit_ceil(static_cast<unsigned>(threads * 4))));
  const int shift = 64 - std::countr_zero(static_cast<unsigned>(parts));
  std::vector<cpu::KeySpan> pieces;
  for (const cpu::KeySpan& span : spans) {
    const int64_t piece = (span.size + threads - 1) / threads;
    for (int64_t begin = 0; begin < span.size; begin += piece) {
      pieces.push_back({span.keys + begin, std::min(piece, span.size - begin)});
    }
  }
  const auto part_of = [&](uint64_t key) { return ssu_hash(ssu, key >> 32) >> shift; };
  std::vector<std::vector<int64_t>> start(pieces.size(), std::vector<int64_t>(static_cast<size_t>(parts), 0));
  cpu::parallel_for(static_cast<int64_t>(pieces.size()), threads, [&](int64_t p, int) {
    const cpu::KeySpan& piece = pieces[static_cast<size_t>(p)];
    for (int64_t i = 0; i < piece.size; ++i) ++start[static_cast<size_t>(p)][part_of(piece.keys[i])];
  });
  std::vector<uint64_t>& out = batch->buffers().partitioned;
  const size_t base = out.size();
  out.resize(base + static_cast<size_t>(n));
  int64_t sum = static_cast<int64_t>(base);
  for (size_t part = 0; part < static_cast<size_t>(parts); ++part) {
    const int64_t begin = sum;
    for (auto& counts : start) sum += std::exchange(counts[part], sum);
    if (sum > begin) units->push_back({index, {{out.data() + begin, sum - begin}}, sum - begin, true});
  }
  cpu::parallel_for(static_cast<int64_t>(pieces.size()), threads, [&](int64_t p, int) {
    const cpu::KeySpan& piece = pieces[static_cast<size_t>(p)];
    std::vector<int64_t>& next = start[static_cast<size_t>(p)];
    for (int64_t i = 0; i < piece.size; ++i) {
      out[static_cast<size_t>(next[part_of(piece.keys[i])]++)] = piece.keys[i];
    }
  });
}

// A unit is a table, or a part of one that is too large for a thread's share. Largest first.
std::vector<Collection::Unit> Collection::plan_units(Batch* batch, int threads, const std::vector<bool>& frozen) {
  std::vector<Unit> units;
  BatchBuffers& buffers = batch->buffers();
  buffers.partitioned.clear();
  buffers.partitioned.reserve(static_cast<size_t>(batch->num_ids()));
  const int64_t share = batch->num_ids() / threads;
  for (int64_t t = 0; t < num_tables(); ++t) {
    if (frozen[static_cast<size_t>(t)]) continue;
    Unit unit{t, {}, 0, false};
    for (const int64_t f : features_of_table_[static_cast<size_t>(t)]) {
      const int64_t begin = batch->feature_begin[static_cast<size_t>(f)];
      const int64_t size = batch->feature_begin[static_cast<size_t>(f) + 1] - begin;
      if (size > 0) unit.spans.push_back({buffers.keys.data() + begin, size});
      unit.size += size;
    }
    const bool splits = threads > 1 && unit.size >= kMinPartitioned && 2 * unit.size > share;
    if (splits && table(t).view().ssu.groups == kSsuGroups) {
      partition(batch, t, std::move(unit.spans), unit.size, threads, &units);
    } else if (unit.size > 0) {
      units.push_back(std::move(unit));
    }
  }
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.size > b.size; });
  return units;
}

cpu::UpdateArgs Collection::update_args(Batch* batch, int64_t index, const void* grad) {
  BatchBuffers& buffers = batch->buffers();
  const std::vector<int64_t>& features = features_of_table_[static_cast<size_t>(index)];
  cpu::UpdateArgs args;
  args.table = update_view(index);
  args.optimizer = optimizer_.kind;
  args.learning_rate = optimizer_.learning_rate;
  args.eps = optimizer_.eps;
  args.beta1 = static_cast<float>(optimizer_.beta1);
  args.beta2 = static_cast<float>(optimizer_.beta2);
  args.gain1 = static_cast<float>(1.0 - optimizer_.beta1);
  args.gain2 = static_cast<float>(1.0 - optimizer_.beta2);
  if (args.optimizer == Optimizer::kAdam || args.optimizer == Optimizer::kPartialRowWiseAdam) {
    const uint64_t t = static_cast<uint64_t>(step_ + 1);
    args.correction1 = adam_correction(optimizer_.beta1, t);
    args.correction2 = adam_correction(optimizer_.beta2, t);
  }
  args.weight_decay = optimizer_.weight_decay;
  args.rounding_key = rounding_key(table(index).key(), static_cast<uint64_t>(step_));
  args.grad = grad;
  args.grad_stride = output_dim_;
  args.batch = batch->batch_size();
  args.feature_column = feature_column_.data();
  // Unpooled, the row of the gradient is the position, whatever the feature.
  args.only_feature = unpooled_ ? 0 : features.size() == 1 ? features[0] : -1;
  args.bag_of = batch->unit_bags ? nullptr : buffers.bag_of.data();
  args.per_sample_weights = batch->weighted ? buffers.per_sample_weights.data() : nullptr;
  if (wide_ && batch->weighted) args.per_sample_weights = buffers.wide_weights.data();
  const Pooling pooling = args.table.pooling;
  args.bag_length = pooling == Pooling::kMean && !batch->unit_bags ? buffers.bag_length.data() : nullptr;
  args.argmax = pooling == Pooling::kMax ? buffers.argmax.data() : nullptr;
  args.scale_grad_by_freq = table(index).spec().scale_grad_by_freq;
  return args;
}

void Collection::enter_sampled(const Unit& unit, const cpu::UpdateArgs& args, const cpu::Workspace& workspace,
                               TrackerDelta* delta) {
  if (workspace.num_sampled == 0) return;
  if (unit.part || args.table.walking) {
    cpu::kernels().enter(args.table, workspace.sampled.data(), workspace.num_sampled, delta);
  } else {
    table(unit.table).defer_sampled(workspace.sampled.data(), workspace.num_sampled);
  }
}

void Collection::run_units(Batch* batch, const std::vector<Unit>& units, const float* grad, int threads,
                           float grad_scale, const uint32_t* multiplicity) {
  if (units.empty()) return;
  std::vector<cpu::UpdateArgs> args(tables_.size());
  bool drift = false;
  for (int64_t t = 0; t < num_tables(); ++t) {
    args[static_cast<size_t>(t)] = update_args(batch, t, grad);
    args[static_cast<size_t>(t)].grad_scale = grad_scale;
    args[static_cast<size_t>(t)].multiplicity = multiplicity;
    drift |= table(t).spec().track_drift;
  }
  for (int i = 0; i < threads; ++i) {
    workspaces_[static_cast<size_t>(i)].reserve(units.front().size, max_dim(), drift);
  }
  for (const Unit& unit : units) table(unit.table).reserve_deferred(unit.size);
  cpu::parallel_for(static_cast<int64_t>(units.size()), threads, [&](int64_t index, int thread) {
    const Unit& unit = units[static_cast<size_t>(index)];
    TrackerDelta delta;
    cpu::Workspace& workspace = workspaces_[static_cast<size_t>(thread)];
    const cpu::UpdateArgs& unit_args = args[static_cast<size_t>(unit.table)];
    cpu::kernels().update(unit_args, unit.spans.data(), static_cast<int>(unit.spans.size()), &workspace, &delta);
    enter_sampled(unit, unit_args, workspace, &delta);
    table(unit.table).add(delta);
  });
}

int64_t Collection::max_dim() const {
  int64_t dim = 0;
  for (const auto& table : tables_) dim = std::max(dim, table->dim());
  return dim;
}

// Draws the accesses after the first that an id stands for; the first was drawn when it was looked up.
void Collection::sample_repeats(Batch* batch, const uint32_t* multiplicity, int threads) {
  const uint64_t key = hash2(sample_key_, kRepeatSalt);
  const uint64_t step = static_cast<uint64_t>(step_);
  cpu::parallel_for(num_features(), threads, [&](int64_t f, int) {
    const size_t i = static_cast<size_t>(f);
    if (table(features_[i]).view().ssu.slots == nullptr) return;
    for (int64_t p = batch->feature_begin[i]; p < batch->feature_begin[i + 1]; ++p) {
      uint64_t left = multiplicity[p] - uint64_t{1};
      uint64_t block = static_cast<uint64_t>(p) << 32;  // of 64 accesses each
      bool drawn = false;
      for (; left > 0 && !drawn; left -= std::min(left, uint64_t{64})) {
        const uint64_t bits = sample_bits(key, step, block++, log2_period_);
        drawn = (left < 64 ? bits & ((uint64_t{1} << left) - 1) : bits) != 0;
      }
      if (drawn) batch->buffers().keys[static_cast<size_t>(p)] |= kSampledFlag;
    }
  });
}

bool Collection::update(Batch* batch, const float* grad, int threads, float grad_scale, const std::vector<bool>& frozen,
                        const uint32_t* multiplicity) {
  check_owner("update");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_batch(*batch, "update");
  threads = static_cast<int>(std::clamp<int64_t>(batch->num_ids() / kIdsWorthAThread, 1, threads));
  if (!all_finite(grad, batch->batch_size() * output_dim_, threads)) {
    batch->consumed = true;
    ++skipped_steps_;
    return false;
  }
  walk_over_at_step_ = active_ == nullptr || !active_->walking();
  reserve_staging(*batch);
  if (multiplicity != nullptr) sample_repeats(batch, multiplicity, threads);
  const std::vector<Unit> units = plan_units(batch, threads, frozen);
  for (const Unit& unit : units) note_rows(unit.table, unit.spans);
  run_units(batch, units, grad, threads, grad_scale, multiplicity);
  batch->consumed = true;
  ++step_;
  return true;
}

int64_t Collection::ids_of_table(const Batch& batch, int64_t index) const {
  int64_t ids = 0;
  for (const int64_t f : features_of_table_.at(static_cast<size_t>(index))) {
    ids += batch.feature_begin[static_cast<size_t>(f) + 1] - batch.feature_begin[static_cast<size_t>(f)];
  }
  return ids;
}

int64_t Collection::gradient(Batch* batch, const void* grad, int64_t index, int64_t* rows, void* values) {
  check_owner("gradient");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_batch(*batch, "gradient");
  std::vector<bool> others(tables_.size(), true);
  others[static_cast<size_t>(index)] = false;
  const std::vector<Unit> units = plan_units(batch, 1, others);
  if (!units.empty()) {
    reserve_staging(*batch);
    table(index).reserve_deferred(units[0].size);
  }
  if (!batch->counted) ++step_;  // one step a batch, however many tables or repeated backwards ask
  batch->counted = true;
  if (units.empty()) return 0;
  cpu::UpdateArgs args = update_args(batch, index, grad);
  args.optimizer = Optimizer::kNone;
  args.out_rows = rows;
  args.out_grad = values;
  workspaces_[0].reserve(units[0].size, table(index).dim(), false);
  TrackerDelta delta;
  const int64_t unique = cpu::kernels().update(args, units[0].spans.data(), static_cast<int>(units[0].spans.size()),
                                               &workspaces_[0], &delta);
  enter_sampled(units[0], args, workspaces_[0], &delta);
  table(index).add(delta);
  return unique;
}

void Collection::weight_grad(Batch* batch, const void* grad, void* out, int threads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_batch(*batch, "per_sample_weight_grad");
  std::vector<double> scratch(static_cast<size_t>(threads * max_dim()));
  cpu::parallel_for(num_features(), threads, [&](int64_t f, int thread) {
    const int64_t begin = batch->feature_begin[static_cast<size_t>(f)];
    const int64_t end = batch->feature_begin[static_cast<size_t>(f) + 1];
    const cpu::UpdateArgs args = update_args(batch, features_[static_cast<size_t>(f)], grad);
    cpu::kernels().weight_grad(args, {batch->buffers().keys.data() + begin, end - begin},
                               scratch.data() + thread * max_dim(), out);
  });
}

}  // namespace cpr
