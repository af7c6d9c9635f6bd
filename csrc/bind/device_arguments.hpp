#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "bind/tensor_ref.hpp"
#include "table/device_collection.hpp"

namespace cpr {

// Keeps a Python object alive; let go with the GIL.
std::shared_ptr<void> owner_of(const pybind11::object& object);

int64_t checked_table(const DeviceCollection& c, int64_t table);

// Global rows [begin, end) of a table.
void check_range(const DeviceCollection& c, int64_t table, int64_t begin, int64_t end);

// Memory of at least `bytes` bytes, of any dtype, aligned to 16.
void* checked_memory(const TensorRef& ref, const char* name, int64_t bytes);

}  // namespace cpr
