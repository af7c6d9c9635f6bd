// The system calls by which segments are written and read.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>

namespace cpr::store {

// Each is the call of the same name and returns what it does, or a negative errno. Called by any thread, several at
// once. Derived classes stand in for the system in tests of what it may refuse.
class System {
 public:
  virtual ~System() = default;
  virtual int open(const std::string& path, int flags, mode_t mode);
  virtual int close(int fd);
  virtual int unlink(const std::string& path);
  virtual int fdatasync(int fd);
  virtual ssize_t pwritev(int fd, const iovec* slices, int count, off_t offset);
  virtual ssize_t pread(int fd, void* to, size_t size, off_t offset);
  // Asks for the bytes to be on their way to the disk: a hint, what goes wrong is reported by the sync.
  virtual void start_writeback(int fd, off_t begin, off_t size);
};

using SystemPtr = std::shared_ptr<System>;

const SystemPtr& real_system();

}  // namespace cpr::store
