#pragma once

#include <pybind11/pybind11.h>

#include "store/system.hpp"

namespace cpr {

// The system calls of a Python object: `open(path, flags, mode)`, `close(fd)`, `unlink(path)`, `fdatasync(fd)`,
// `pwrite(fd, data, offset)`, `pread(fd, size, offset)`, which raise OSError. None: the system's own.
store::SystemPtr system_of(const pybind11::object& system);

}  // namespace cpr
