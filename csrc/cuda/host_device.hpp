#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device.hpp"

namespace cpr::cuda {

// A Device whose kernels run on the host, for tests: every group of a launch runs by itself, in an order drawn from
// `seed`. Streams are queues; which of them goes on is drawn too, and their work is done late: with `deferred` not
// before the next call, at the latest when someone waits for it. It shows that the logic of kernels and of their order
// holds, not how a GPU's memory behaves. Device memory is memory of the host. Throws std::invalid_argument for `lanes`
// other than 1, 8 and 32.
std::shared_ptr<Device> make_host_device(int lanes, uint64_t seed, bool deferred);

}  // namespace cpr::cuda
