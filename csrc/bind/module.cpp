#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/register.hpp"
#include "core/giving_way.hpp"
#include "cpu/kernels.hpp"
#include "cpu/thread_pool.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_native, m) {
  m.doc() = "The compiled engine of cpr_native: tables, trackers, snapshots and segment files.";
  cpr::cpu::kernels();  // an unknown CPR_ISA fails the import
  m.def("isa", [] { return std::string(cpr::cpu::kernels().name); }, "Name of the instruction set in use.");
  m.def("supported_isas", &cpr::cpu::supported_levels, "Instruction sets of this machine, weakest first.");
  m.def(
      "share_openmp", [](const std::string& path) { return cpr::cpu::share_openmp(path.c_str()); }, py::arg("path"),
      "Run on the threads of the loaded OpenMP library `path`; False if it can't be.");
  m.def("give_way", [] { cpr::gives_way = true; }, "See core/giving_way.hpp.");
  cpr::register_errors(m);
  cpr::register_collection(m);
  cpr::register_device(m);
  cpr::register_route(m);
  cpr::register_snapshot(m);
  cpr::register_store(m);
  cpr::register_cuda(m);
}
