#pragma once

#include <pybind11/pybind11.h>

namespace cpr {

class Collection;
class DeviceCollection;

void register_errors(pybind11::module_& m);
void register_settings(pybind11::module_& m);
void register_rows(pybind11::class_<Collection>& c);
void register_outside(pybind11::class_<Collection>& c);
void register_region(pybind11::module_& m, pybind11::class_<Collection>& c);
void register_collection(pybind11::module_& m);
void register_device(pybind11::module_& m);
void register_device_rows(pybind11::class_<DeviceCollection>& c);
void register_device_unique(pybind11::class_<DeviceCollection>& c);
void register_device_saved(pybind11::class_<DeviceCollection>& c);
void register_route(pybind11::module_& m);
void register_snapshot(pybind11::module_& m);
void register_store(pybind11::module_& m);
void register_stored_rows(pybind11::module_& m);
void register_cuda(pybind11::module_& m);

}  // namespace cpr
