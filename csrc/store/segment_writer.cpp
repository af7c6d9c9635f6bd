#include "store/segment_writer.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/crc32c.hpp"
#include "core/errors.hpp"

namespace cpr::store {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxPiecesPerWrite = 1024;   // IOV_MAX of Linux
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the safetensors format

void append_json_string(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_json_entry(const std::string& key, const std::string& value, std::string& out) {
  append_json_string(key, out);
  out += ':';
  append_json_string(value, out);
}

[[noreturn]] void fail(int code, const std::string& path) {
  throw IoError(code, std::generic_category().message(code), path);
}

std::string hex(uint32_t crc) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc);
  return digits;
}

uint32_t tensor_crc(const SegmentTensor& tensor) {
  uint32_t crc = 0;
  for (const Piece& piece : tensor.pieces) crc = crc32c(piece.data, piece.size, crc);
  return crc;
}

// The length word and the JSON header, padded with spaces.
std::string make_header(std::span<const SegmentTensor> tensors, std::span<const uint32_t> crcs,
                        std::map<std::string, std::string> metadata) {
  std::set<std::string> names = {"__metadata__"};
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!names.insert(tensors[i].name).second) {
      throw std::invalid_argument("segment: tensor name given twice or reserved: " + tensors[i].name);
    }
    metadata["crc32c." + tensors[i].name] = hex(crcs[i]);
  }
  std::string json = "{\"__metadata__\":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    if (!first) json += ',';
    first = false;
    append_json_entry(key, value, json);
  }
  json += '}';
  uint64_t offset = 0;
  for (const SegmentTensor& tensor : tensors) {
    json += ',';
    append_json_string(tensor.name, json);
    json += ":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (d != 0) json += ',';
      json += std::to_string(tensor.shape[d]);
    }
    json += "],\"data_offsets\":[" + std::to_string(offset) + ',';
    offset += tensor.size();
    json += std::to_string(offset) + "]}";
  }
  json += '}';
  const size_t unaligned = (8 + json.size()) % kAlignment;
  if (unaligned != 0) json.append(kAlignment - unaligned, ' ');
  if (json.size() > kMaxHeader) throw std::invalid_argument("segment: header over 100 MB");
  std::string header;
  for (int byte = 0; byte < 8; ++byte) header += static_cast<char>(json.size() >> (8 * byte));
  return header + json;
}

// A file being created: removed again unless `finish` has returned.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path) {
    do {
      fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    } while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) fail(errno, path_);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (finished_) return;
    if (fd_ >= 0) ::close(fd_);
    ::unlink(path_.c_str());
  }

  // Writes all bytes; `pieces` is consumed.
  void write(std::vector<iovec> pieces) {
    size_t next = 0;
    while (next < pieces.size()) {
      const size_t count = std::min(pieces.size() - next, kMaxPiecesPerWrite);
      ssize_t written = ::writev(fd_, &pieces[next], static_cast<int>(count));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(errno, path_);
      if (written == 0) fail(EIO, path_);
      while (next < pieces.size() && static_cast<size_t>(written) >= pieces[next].iov_len) {
        written -= static_cast<ssize_t>(pieces[next].iov_len);
        ++next;
      }
      if (next < pieces.size()) {
        pieces[next].iov_base = static_cast<char*>(pieces[next].iov_base) + written;
        pieces[next].iov_len -= static_cast<size_t>(written);
      }
    }
  }

  // Makes the bytes durable. A failed sync is final: the kernel may have dropped the pages it could not write.
  void finish() {
    if (::fdatasync(fd_) != 0) fail(errno, path_);
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0 && errno != EINTR) fail(errno, path_);
    finished_ = true;
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool finished_ = false;
};

}  // namespace

uint64_t SegmentTensor::size() const noexcept {
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.size;
  return total;
}

SegmentResult write_segment(const std::string& path, std::span<const SegmentTensor> tensors,
                            const std::map<std::string, std::string>& metadata) {
  std::vector<uint32_t> crcs;
  for (const SegmentTensor& tensor : tensors) crcs.push_back(tensor_crc(tensor));
  const std::string header = make_header(tensors, crcs, metadata);

  SegmentResult result{header.size(), crc32c(header.data(), header.size())};
  std::vector<iovec> pieces = {{const_cast<char*>(header.data()), header.size()}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const Piece& piece : tensors[i].pieces) {
      if (piece.size != 0) pieces.push_back({const_cast<void*>(piece.data), piece.size});
    }
    result.crc = crc32c_combine(result.crc, crcs[i], tensors[i].size());
    result.size += tensors[i].size();
  }

  NewFile file(path);
  file.write(std::move(pieces));
  file.finish();
  return result;
}

}  // namespace cpr::store
