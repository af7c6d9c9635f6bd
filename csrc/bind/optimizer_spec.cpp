#include "bind/optimizer_spec.hpp"

#include <cmath>
#include <set>
#include <utility>

#include "bind/checks.hpp"

namespace cpr {

namespace {

const std::pair<const char*, Optimizer> kOptimizers[] = {{"none", Optimizer::kNone},
                                                         {"sgd", Optimizer::kSgd},
                                                         {"row_wise_adagrad", Optimizer::kRowWiseAdagrad},
                                                         {"adagrad", Optimizer::kAdagrad},
                                                         {"adam", Optimizer::kAdam},
                                                         {"partial_row_wise_adam", Optimizer::kPartialRowWiseAdam}};

}  // namespace

Optimizer parse_optimizer(const std::string& name) {
  std::string known;
  for (const auto& [text, kind] : kOptimizers) {
    if (name == text) return kind;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  throw std::invalid_argument("optimizer: expected one of " + known + ", got " + name);
}

void check_not_negative(const char* name, float value) {
  require(std::isfinite(value) && value >= 0.0F,
          std::string(name) + ": expected a finite value >= 0, got " + std::to_string(value));
}

void check_beta(const char* name, double value) {
  require(value >= 0.0 && value < 1.0, std::string(name) + ": expected 0 <= value < 1, got " + std::to_string(value));
}

void check_optimizer(const OptimizerSpec& spec) {
  check_not_negative("learning_rate", spec.learning_rate);
  check_not_negative("eps", spec.eps);
  check_not_negative("initial_state", spec.initial_state);
  check_beta("beta1", spec.beta1);
  check_beta("beta2", spec.beta2);
  check_not_negative("weight_decay", spec.weight_decay);
}

void check_tables(const std::vector<TableSpec>& tables, const std::vector<int64_t>& features, const OptimizerSpec& spec,
                  const std::string& optimizer) {
  require(!tables.empty(), "tables: expected at least one");
  std::set<std::string> names;
  for (const TableSpec& table : tables) {
    require(names.insert(table.name).second, "tables: expected unique names, got '" + table.name + "' twice");
    const bool wide = table.dtype == DType::kFloat64;
    require(!wide || spec.kind == Optimizer::kNone,
            "table '" + table.name + "': float64 is supported with optimizer none only, got " + optimizer);
    require(wide == (tables[0].dtype == DType::kFloat64),
            "table '" + table.name + "': float64 and other dtypes don't mix in one collection");
    require(!table.external || spec.kind == Optimizer::kNone,
            "table '" + table.name + "': external memory is supported with optimizer none only, got " + optimizer);
    require(!table.track_drift || spec.kind != Optimizer::kNone,
            "table '" + table.name + "': the drift is tracked by fused optimizers only, got none");
  }
  for (const int64_t table : features) {
    require(
        table >= 0 && table < static_cast<int64_t>(tables.size()),
        "features: expected table numbers below " + std::to_string(tables.size()) + ", got " + std::to_string(table));
  }
}

}  // namespace cpr
