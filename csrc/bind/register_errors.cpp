#include <cerrno>

#include "bind/register.hpp"
#include "core/errors.hpp"

namespace py = pybind11;

namespace cpr {

void register_errors(py::module_& m) {
  static const auto base = py::register_exception<Error>(m, "CprError");
  py::register_exception<CorruptionError>(m, "CorruptionError", base);
  py::register_exception<SnapshotInProgress>(m, "SnapshotInProgress", base);
  py::register_exception<StagingFull>(m, "StagingFull", base);
  py::register_exception<ForkedProcessError>(m, "ForkedProcessError", base);
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const Timeout& error) {
      PyErr_SetString(PyExc_TimeoutError, error.what());
    } catch (const IoError& error) {
      const py::tuple arguments = py::make_tuple(error.code(), error.what(), error.path());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
}

}  // namespace cpr
