#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/register.hpp"
#include "cuda/driver.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

using Device = std::tuple<std::string, int, int, int64_t, std::string>;

std::tuple<int, std::string, std::vector<Device>> cuda_driver() {
  cuda::Driver found;
  {
    const py::gil_scoped_release release;
    found = cuda::find_devices();
  }
  std::vector<Device> devices;
  for (cuda::DeviceInfo& d : found.devices) {
    devices.emplace_back(std::move(d.name), d.major, d.minor, d.memory, std::move(d.why_not));
  }
  return {found.driver, std::move(found.why_not), std::move(devices)};
}

}  // namespace

void register_cuda(py::module_& m) {
  m.def(
      "cuda_build", [] { return std::make_pair(cuda::built_for(), cuda::architectures()); },
      "CUDA version of this build (0: none) and its targets.");
  m.def("cuda_driver", &cuda_driver, "CUDA version of the driver (0: none), why there is no device, the devices.");
  m.def("cuda_missing_code", &cuda::missing_code, py::arg("targets"), py::arg("major"), py::arg("minor"),
        "Why a device has no code among the targets; empty if it has.");
}

}  // namespace cpr
