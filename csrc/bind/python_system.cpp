#include "bind/python_system.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace py = pybind11;

namespace cpr {
namespace {

// May be used and destroyed by any thread, with or without the GIL.
class PythonSystem final : public store::System {
 public:
  explicit PythonSystem(py::object calls) : calls_(std::move(calls)) {}
  ~PythonSystem() override {
    const py::gil_scoped_acquire gil;
    calls_ = py::object();
  }

  int open(const std::string& path, int flags, mode_t mode) override {
    return call<int>([&] { return calls_.attr("open")(path, flags, mode).cast<int>(); });
  }
  int close(int fd) override {
    return call<int>([&] { return done(calls_.attr("close")(fd)); });
  }
  int unlink(const std::string& path) override {
    return call<int>([&] { return done(calls_.attr("unlink")(path)); });
  }
  int fdatasync(int fd) override {
    return call<int>([&] { return done(calls_.attr("fdatasync")(fd)); });
  }
  ssize_t pwritev(int fd, const iovec* slices, int count, off_t offset) override {
    return call<ssize_t>([&] {
      std::string data;
      for (int i = 0; i < count; ++i) data.append(static_cast<const char*>(slices[i].iov_base), slices[i].iov_len);
      return calls_.attr("pwrite")(fd, py::bytes(data), offset).cast<ssize_t>();
    });
  }
  ssize_t pread(int fd, void* to, size_t size, off_t offset) override {
    return call<ssize_t>([&] {
      const auto data = calls_.attr("pread")(fd, size, offset).cast<py::bytes>();
      const auto bytes = static_cast<std::string_view>(data);
      const size_t length = std::min(bytes.size(), size);
      std::memcpy(to, bytes.data(), length);
      return static_cast<ssize_t>(length);
    });
  }
  void start_writeback(int, off_t, off_t) override {}

 private:
  static int done(const py::object&) { return 0; }

  // A negative errno for OSError, -EIO for anything else that is raised.
  template <typename Result, typename Body>
  static Result call(const Body& body) {
    const py::gil_scoped_acquire gil;
    try {
      return body();
    } catch (py::error_already_set& error) {
      int code = EIO;
      if (error.matches(PyExc_OSError) && py::hasattr(error.value(), "errno")) {
        const py::object number = error.value().attr("errno");
        if (py::isinstance<py::int_>(number)) code = number.cast<int>();
      }
      return static_cast<Result>(-code);
    }
  }

  py::object calls_;
};

}  // namespace

store::SystemPtr system_of(const py::object& system) {
  if (system.is_none()) return store::real_system();
  return std::make_shared<PythonSystem>(system);
}

}  // namespace cpr
