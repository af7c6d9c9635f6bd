#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device.hpp"

namespace cpr {

class DeviceCollection;

// What one forward on a device leaves for its update, in memory of the caller's that `owner` keeps alive.
struct DeviceBatch {
  const DeviceCollection* collection = nullptr;
  int64_t num_ids = 0;
  int64_t batch_size = 0;
  bool weighted = false;
  std::shared_ptr<void> owner;
  cuda::BatchView view;
  bool consumed = false;  // by update
  bool sorted = false;    // by the first gradient
};

}  // namespace cpr
