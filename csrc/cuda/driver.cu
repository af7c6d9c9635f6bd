#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/driver.hpp"

#ifndef CPR_CUDA_ARCHITECTURES
#error "CPR_CUDA_ARCHITECTURES: expected the list of targets, as of CMAKE_CUDA_ARCHITECTURES, with commas"
#endif

namespace cpr::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Within a major version of CUDA a newer run-time library runs on an older driver (CUDA Compatibility, section "Minor
// Version Compatibility").
std::string too_old(int driver) {
  const int major = CUDART_VERSION / 1000;
  const std::string release = major == 12 ? ", release 525 or newer" : major == 13 ? ", release 580 or newer" : "";
  return "the NVIDIA driver is too old: it supports CUDA " + version_text(driver) + ", this build needs one for CUDA " +
         std::to_string(major) + release;
}

std::string reason_of(cudaError_t error, int driver) {
  if (driver == 0) return "no NVIDIA driver: libcuda.so.1 was not found";
  if (error == cudaErrorInsufficientDriver) return too_old(driver);
  if (error == cudaErrorNoDevice) return "the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES set?)";
  return std::string("CUDA can't be used: ") + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

DeviceInfo info_of(int index, const std::vector<std::string>& targets) {
  DeviceInfo info;
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) {
    cudaGetLastError();
    info.why_not = std::string("CUDA can't use it: ") + cudaGetErrorString(error);
    return info;
  }
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.memory = static_cast<int64_t>(properties.totalGlobalMem);
  info.why_not = missing_code(targets, info.major, info.minor);
  return info;
}

}  // namespace

std::vector<std::string> architectures() {
  std::vector<std::string> targets;
  const std::string list = CPR_CUDA_ARCHITECTURES;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string target = list.substr(begin, end - begin);
    if (target.find('-') != std::string::npos) {
      targets.push_back(target);
    } else if (!target.empty()) {
      targets.insert(targets.end(), {target + "-real", target + "-virtual"});
    }
    begin = end + 1;
  }
  return targets;
}

int built_for() { return CUDART_VERSION; }

Driver find_devices() {
  Driver found;
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) found.driver = 0;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();  // it stays set for this thread otherwise
    found.why_not = reason_of(error != cudaSuccess ? error : cudaErrorNoDevice, found.driver);
    return found;
  }
  const std::vector<std::string> targets = architectures();
  for (int index = 0; index < count; ++index) found.devices.push_back(info_of(index, targets));
  return found;
}

}  // namespace cpr::cuda
