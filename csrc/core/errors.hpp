#pragma once

#include <stdexcept>
#include <string>
#include <utility>

// std::invalid_argument -> ValueError, std::out_of_range -> IndexError, std::bad_alloc -> MemoryError; the kinds below
// have Python classes of their own name, Timeout becomes TimeoutError,
// IoError becomes OSError(errno, message, filename).
namespace cpr {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CorruptionError : Error {
  using Error::Error;
};

struct SnapshotInProgress : Error {
  using Error::Error;
};

struct StagingFull : Error {
  using Error::Error;
};

struct ForkedProcessError : Error {
  using Error::Error;
};

struct Timeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class IoError : public std::runtime_error {
 public:
  IoError(int code, const std::string& message, std::string path)
      : std::runtime_error(message), code_(code), path_(std::move(path)) {}
  int code() const { return code_; }
  const std::string& path() const { return path_; }

 private:
  int code_;
  std::string path_;
};

}  // namespace cpr
