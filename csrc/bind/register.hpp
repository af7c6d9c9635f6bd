#pragma once

#include <pybind11/pybind11.h>

namespace cpr {

void register_errors(pybind11::module_& m);
void register_collection(pybind11::module_& m);
void register_snapshot(pybind11::module_& m);
void register_store(pybind11::module_& m);

}  // namespace cpr
