#pragma once

#include <memory>

#include "cuda/device.hpp"

namespace cpr::cuda {

// The GPU with CUDA's number `index`, which must be there and usable (driver.hpp). Streams are those of torch. Throws
// Error for what CUDA reports.
std::shared_ptr<Device> make_cuda_device(int index);

}  // namespace cpr::cuda
