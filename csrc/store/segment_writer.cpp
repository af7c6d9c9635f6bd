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
#include "core/giving_way.hpp"

namespace cpr::store {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxPiecesPerWrite = 1024;   // IOV_MAX of Linux
constexpr size_t kSlice = size_t{1} << 20;    // bytes of one write: stay in cache meanwhile
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

void remove_open(System* system, int* fd, const std::string& path) {
  system->close(std::exchange(*fd, -1));
  system->unlink(path);
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

// Writes from `position` on. Each slice is on its way to the disk while the next one is copied to the page cache.
class Output {
 public:
  Output(System* system, int fd, const std::string& path, size_t position)
      : system_(system), fd_(fd), path_(path), position_(static_cast<off_t>(position)) {}

  // Returns the checksum of what had `crc` followed by the piece.
  uint32_t add(const Piece& piece, uint32_t crc) {
    for (size_t done = 0; done < piece.size;) {
      const size_t size = std::min(piece.size - done, kSlice - gathered_);
      const char* data = static_cast<const char*>(piece.data) + done;
      crc = crc32c(data, size, crc);
      slice_.push_back({const_cast<char*>(data), size});
      gathered_ += size;
      done += size;
      if (gathered_ == kSlice || slice_.size() == kMaxPiecesPerWrite) write_slice();
    }
    return crc;
  }

  void write(const std::string& text) {
    slice_.push_back({const_cast<char*>(text.data()), text.size()});
    write_slice();
  }

  // Returns where the next byte would go.
  uint64_t finish() {
    write_slice();
    return static_cast<uint64_t>(position_);
  }

 private:
  void write_slice() {
    const off_t begin = position_;
    for (size_t next = 0; next < slice_.size();) {
      const ssize_t written = system_->pwritev(fd_, &slice_[next], static_cast<int>(slice_.size() - next), position_);
      if (written == -EINTR) continue;
      if (written < 0) fail(static_cast<int>(-written), path_);
      if (written == 0) fail(EIO, path_);
      position_ += written;
      size_t left = static_cast<size_t>(written);
      for (; next < slice_.size() && left >= slice_[next].iov_len; ++next) left -= slice_[next].iov_len;
      if (next < slice_.size()) {
        slice_[next].iov_base = static_cast<char*>(slice_[next].iov_base) + left;
        slice_[next].iov_len -= left;
      }
    }
    system_->start_writeback(fd_, begin, position_ - begin);
    slice_.clear();
    gathered_ = 0;
    way_.worked();
  }

  System* const system_;
  const int fd_;
  const std::string& path_;
  off_t position_;
  std::vector<iovec> slice_;
  size_t gathered_ = 0;  // bytes in slice_
  GivingWay way_;
};

}  // namespace

uint64_t SegmentTensor::size() const noexcept {
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.size;
  return total;
}

// The header, which has the checksums, comes last: so each slice is read from memory once, checksummed and written
// while it is in cache.
SegmentFile::SegmentFile(std::string path, std::span<const SegmentTensor> tensors,
                         const std::map<std::string, std::string>& metadata, SystemPtr system)
    : system_(std::move(system)), path_(std::move(path)), owner_(getpid()) {
  std::vector<uint32_t> crcs(tensors.size(), 0);
  const size_t header_size = make_header(tensors, crcs, metadata).size();
  do {
    fd_ = system_->open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  } while (fd_ == -EINTR);
  if (fd_ < 0) fail(-fd_, path_);
  try {
    Output output(system_.get(), fd_, path_, header_size);
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (const Piece& piece : tensors[i].pieces) crcs[i] = output.add(piece, crcs[i]);
    }
    size_ = output.finish();
    const std::string header = make_header(tensors, crcs, metadata);
    Output(system_.get(), fd_, path_, 0).write(header);
    crc_ = crc32c(header.data(), header.size());
    for (size_t i = 0; i < tensors.size(); ++i) crc_ = crc32c_combine(crc_, crcs[i], tensors[i].size());
  } catch (...) {
    remove_open(system_.get(), &fd_, path_);
    throw;
  }
}

SegmentFile::~SegmentFile() {
  if (fd_ < 0) return;
  if (getpid() == owner_) {
    remove_open(system_.get(), &fd_, path_);
  } else {
    system_->close(fd_);  // a forked child's copy: the file is its parent's
  }
}

void SegmentFile::sync() {
  if (fd_ < 0) throw std::invalid_argument("sync: expected a segment that was not synced yet, got " + path_);
  int code = system_->fdatasync(fd_);
  if (code < 0) {
    remove_open(system_.get(), &fd_, path_);
    fail(-code, path_);
  }
  code = system_->close(std::exchange(fd_, -1));
  if (code < 0 && code != -EINTR) {
    system_->unlink(path_);
    fail(-code, path_);
  }
}

}  // namespace cpr::store
