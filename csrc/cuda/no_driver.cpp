#include "cuda/driver.hpp"

namespace cpr::cuda {

int built_for() { return 0; }

Driver find_devices() {
  Driver found;
  found.why_not = "this build of cpr_native has no CUDA engine: it is built where CMake finds nvcc";
  return found;
}

std::vector<std::string> architectures() { return {}; }

}  // namespace cpr::cuda
