#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What CUDA finds on this machine. Plain C++: with the CUDA engine it is driver.cu, without it no_driver.cpp.
namespace cpr::cuda {

struct DeviceInfo {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int64_t memory = 0;   // bytes
  std::string why_not;  // this build can't use it; empty if it can
};

struct Driver {
  int driver = 0;                   // the newest CUDA version that the installed driver supports; 0: no driver
  std::string why_not;              // there are no devices; empty if there are
  std::vector<DeviceInfo> devices;  // by CUDA's index
};

// CUDA version as 1000 * major + 10 * minor; 0 without the CUDA engine.
int built_for();

// From any thread. The first call with a driver initialises it in this process, whose children after a fork then can't
// use it (as with torch); it makes no context and takes no device memory.
Driver find_devices();

// The targets that this build has code for, each as "90-real" (machine code) or "90-virtual" (PTX).
std::vector<std::string> architectures();

// Why a device of this compute capability has no code in a build for `targets`; empty if it has.
std::string missing_code(const std::vector<std::string>& targets, int major, int minor);

}  // namespace cpr::cuda
