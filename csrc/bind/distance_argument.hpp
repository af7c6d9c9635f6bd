#pragma once

#include <string>

#include "bind/checks.hpp"
#include "cpu/kernels.hpp"

namespace cpr {

inline cpu::Distance distance_of(const std::string& metric) {
  require(metric == "l2" || metric == "l1" || metric == "tv",
          "changes: metric: expected l2, l1 or tv, got '" + metric + "'");
  return metric == "l2" ? cpu::Distance::kL2 : metric == "l1" ? cpu::Distance::kL1 : cpu::Distance::kTv;
}

}  // namespace cpr
