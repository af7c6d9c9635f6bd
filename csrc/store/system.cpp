#include "store/system.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace cpr::store {
namespace {

template <typename Result>
Result or_errno(Result result) {
  return result < 0 ? static_cast<Result>(-errno) : result;
}

}  // namespace

int System::open(const std::string& path, int flags, mode_t mode) {
  return or_errno(::open(path.c_str(), flags, mode));
}

int System::close(int fd) { return or_errno(::close(fd)); }

int System::unlink(const std::string& path) { return or_errno(::unlink(path.c_str())); }

int System::fdatasync(int fd) { return or_errno(::fdatasync(fd)); }

ssize_t System::pwritev(int fd, const iovec* slices, int count, off_t offset) {
  return or_errno(::pwritev(fd, slices, count, offset));
}

ssize_t System::pread(int fd, void* to, size_t size, off_t offset) { return or_errno(::pread(fd, to, size, offset)); }

void System::start_writeback(int fd, off_t begin, off_t size) {
  static_cast<void>(::sync_file_range(fd, begin, size, SYNC_FILE_RANGE_WRITE));
}

const SystemPtr& real_system() {
  static const SystemPtr system = std::make_shared<System>();
  return system;
}

}  // namespace cpr::store
