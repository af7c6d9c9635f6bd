#include <cstdlib>

#include "cuda/driver.hpp"

namespace cpr::cuda {
namespace {

std::string capability(int number) { return std::to_string(number / 10) + "." + std::to_string(number % 10); }

}  // namespace

// Machine code runs on devices of its major version and the same or a higher minor one; PTX is compiled by the driver
// for any device of the same or a higher capability (CUDA C++ Programming Guide, "Compute Capability").
std::string missing_code(const std::vector<std::string>& targets, int major, int minor) {
  const int wanted = 10 * major + minor;
  std::string there;
  for (const std::string& target : targets) {
    const int number = std::atoi(target.c_str());
    const bool ptx = target.ends_with("-virtual");
    if (number <= wanted && (ptx || number / 10 == major)) return "";
    there += (there.empty() ? "" : ", ") + capability(number) + (ptx ? " and newer" : "");
  }
  return "compute capability " + capability(wanted) + " has no code in this build, which is for " +
         (there.empty() ? "none" : there) + " (CPR_CUDA_ARCHITECTURES)";
}

}  // namespace cpr::cuda
