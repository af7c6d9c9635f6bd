#pragma once

#include <string>
#include <vector>

#include "core/types.hpp"

namespace cpr {

// Settings of a collection, whatever its engine. All throw std::invalid_argument.
Optimizer parse_optimizer(const std::string& name);
void check_not_negative(const char* name, float value);
void check_beta(const char* name, double value);
void check_optimizer(const OptimizerSpec& spec);
void check_tables(const std::vector<TableSpec>& tables, const std::vector<int64_t>& features, const OptimizerSpec& spec,
                  const std::string& optimizer);

}  // namespace cpr
