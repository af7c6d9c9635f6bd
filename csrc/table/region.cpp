#include "table/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>

#include "core/errors.hpp"
#include "table/region_format.hpp"

namespace cpr {

namespace {

constexpr char kMagic[8] = {'C', 'P', 'R', 'R', 'E', 'G', 'N', '\n'};
constexpr uint32_t kVersion = 1;
constexpr size_t kSparseStep = size_t{1} << 20;

// Changes whenever the machine is started: memory that was not written to disk is gone then.
std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// POSIX gives one process the same lock twice: files locked by this one, by device and inode.
std::mutex held_mutex;
std::set<std::pair<uint64_t, uint64_t>> held;

}  // namespace

bool SparseArea::back(size_t bytes) noexcept {
  if (bytes <= backed_) return true;
  if (bytes > memory_.size()) return false;
  const size_t wanted = std::min(memory_.size(), region_rounded(bytes, kSparseStep));
  if (posix_fallocate(fd_, static_cast<off_t>(offset_ + backed_), static_cast<off_t>(wanted - backed_)) != 0) {
    return false;
  }
  backed_ = wanted;
  return true;
}

void SparseArea::trim(size_t bytes) noexcept {
  const size_t kept = region_rounded(bytes, kSparseStep);
  if (kept >= backed_) return;
  if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_ + kept),
                static_cast<off_t>(backed_ - kept)) == 0) {
    backed_ = kept;
  }
}

Region::Region(int fd, std::string name, bool discard) : fd_(fd), name_(std::move(name)) {
  bool mine = false;  // this process has the lock by another descriptor: closing this one would free it
  try {
    lock(&mine);
    try {
      open(discard);
    } catch (...) {
      const std::lock_guard<std::mutex> guard(held_mutex);
      held.erase(key_);
      throw;
    }
  } catch (...) {
    if (!mine) close(fd_);
    throw;
  }
}

Region::~Region() {
  const std::lock_guard<std::mutex> guard(held_mutex);
  held.erase(key_);
  close(fd_);
}

void Region::lock(bool* mine) {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) throw IoError(errno, std::strerror(errno), name_);
  key_ = {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino)};
  const std::lock_guard<std::mutex> guard(held_mutex);
  *mine = held.count(key_) != 0;
  if (*mine) throw IoError(EAGAIN, "in use in this process", name_);
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  if (fcntl(fd_, F_SETLK, &range) != 0) {
    const bool taken = errno == EACCES || errno == EAGAIN;
    throw IoError(taken ? EAGAIN : errno, taken ? "in use by another process" : std::strerror(errno), name_);
  }
  held.insert(key_);
}

// Why the contents can't be attached to; empty if they can. `torn`: they should have been intact.
std::string Region::refusal(bool* torn) const {
  const Superblock& s = *super();
  *torn = true;
  if (s.version != kVersion) {
    return "version: expected " + std::to_string(kVersion) + ", got " + std::to_string(s.version);
  }
  if (s.ready == 0) {
    *torn = false;
    return "no step was committed to it, or a restore of its rows was interrupted";
  }
  if (s.ready != 1) return "torn header: ready: expected 0 or 1, got " + std::to_string(s.ready);
  if (s.checksum() != s.crc) {
    return "torn header: checksum: expected " + std::to_string(s.crc) + ", got " + std::to_string(s.checksum());
  }
  struct stat status = {};
  fstat(fd_, &status);
  if (s.end > static_cast<uint64_t>(status.st_size) || s.num_areas > kMaxAreas || s.slots + kRegionPage > s.end) {
    return "torn: expected " + std::to_string(s.end) + " bytes, got " + std::to_string(status.st_size);
  }
  if (boot_id() != s.boot) {
    *torn = false;
    return "the machine was started anew since it was written";
  }
  return {};
}

void Region::open(bool discard) {
  struct stat status = {};
  fstat(fd_, &status);
  if (status.st_size == 0) return clear();
  char magic[sizeof kMagic] = {};
  const bool known = pread(fd_, magic, sizeof magic, 0) == sizeof magic && std::memcmp(magic, kMagic, 8) == 0;
  if (!known) {
    throw std::invalid_argument(name_ +
                                ": expected an empty file or tables in shared memory, got another kind of file");
  }
  if (static_cast<size_t>(status.st_size) < kRegionHeaderBytes) {
    reason_ = "no step was committed to it";
    return clear();
  }
  header_ = HugeBuffer(kRegionHeaderBytes, fd_, 0);
  bool torn = false;
  reason_ = refusal(&torn);
  if (reason_.empty()) {
    map_slots(super()->slots, 0);
    for (const Slot& slot : slots()->slot) sequence_ = std::max(sequence_, slot.sequence);
    ended_ = slots()->slot[sequence_ % 2].ended;
    attached_ = true;
  } else if (torn && !discard) {
    if (reason_.starts_with("version")) throw Error(name_ + ": " + reason_);
    throw CorruptionError(name_ + ": " + reason_);
  } else {
    clear();
  }
}

void Region::clear() {
  header_ = {};
  slots_ = {};
  if (ftruncate(fd_, 0) != 0 || pwrite(fd_, kMagic, sizeof kMagic, 0) != sizeof kMagic) {
    throw IoError(errno, std::strerror(errno), name_);
  }
  grow(kRegionHeaderBytes);
  const int error = posix_fallocate(fd_, 0, sizeof(Superblock));
  if (error != 0) throw IoError(error, "no space for the header of shared tables", name_);
  header_ = HugeBuffer(kRegionHeaderBytes, fd_, 0);
  Superblock& s = *super();
  s.version = kVersion;
  const std::string boot = boot_id();
  std::memcpy(s.boot, boot.data(), std::min(boot.size(), sizeof s.boot - 1));
  s.end = kRegionHeaderBytes;
  s.crc = s.checksum();
  attached_ = false;
  sequence_ = 0;
  ended_ = 0;
}

void Region::reset(const std::string& reason) {
  if (used_areas_ > 0) throw Error(name_ + ": " + reason + "; tables are in use: remove the file or use another");
  clear();
  reason_ = reason;
}

void Region::grow(size_t end) {
  if (ftruncate(fd_, static_cast<off_t>(end)) != 0) throw IoError(errno, std::strerror(errno), name_);
}

AreaEntry* Region::next_area(size_t bytes, char kind) {
  Superblock& s = *super();
  if (used_areas_ == kMaxAreas) throw Error(name_ + ": too many tables for one region");
  AreaEntry* entry = &s.areas[used_areas_];
  if (attached_) {
    const bool same = used_areas_ < s.num_areas && entry->kind == static_cast<uint64_t>(kind) && entry->bytes == bytes;
    if (!same || entry->offset + bytes > s.end) {
      throw Error(name_ + ": the tables built are not those of the process before: expected an area of " +
                  std::to_string(used_areas_ < s.num_areas ? entry->bytes : 0) + " bytes, got " +
                  std::to_string(bytes));
    }
  } else {
    entry->offset = s.end;
    entry->bytes = bytes;
    entry->kind = static_cast<uint64_t>(kind);
    grow(s.end + region_rounded(bytes, kRegionAlign));
    s.end += region_rounded(bytes, kRegionAlign);
  }
  return entry;
}

Arena Region::area(size_t bytes) {
  if (bytes == 0) return Arena(0);
  const AreaEntry& entry = *next_area(bytes, 'A');
  if (!attached_) {
    const int error = posix_fallocate(fd_, static_cast<off_t>(entry.offset), static_cast<off_t>(bytes));
    if (error != 0) {
      throw IoError(error,
                    std::string(std::strerror(error)) + ": shared tables need " + std::to_string(bytes) +
                        " bytes more: use a larger file system, or a keeper, whose memory has no such bound",
                    name_);
    }
    super()->num_areas = used_areas_ + 1;
    super()->crc = super()->checksum();
  }
  ++used_areas_;
  return Arena(HugeBuffer(bytes, fd_, entry.offset));
}

SparseArea Region::sparse_area(size_t bytes) {
  const AreaEntry& entry = *next_area(bytes, 'S');
  if (!attached_) {
    super()->num_areas = used_areas_ + 1;
    super()->crc = super()->checksum();
  }
  ++used_areas_;
  return SparseArea(fd_, entry.offset, HugeBuffer(bytes, fd_, entry.offset));
}

std::string Region::describe(const std::string& text) {
  if (attached_) {
    const AreaEntry& entry = super()->areas[used_areas_];
    if (used_areas_ >= super()->num_areas || entry.kind != 'T' || entry.offset + entry.bytes > super()->end) {
      return "nothing";
    }
    const HugeBuffer memory(entry.bytes, fd_, entry.offset);
    std::string before(static_cast<const char*>(memory.data()), entry.bytes);
    if (before != text) return before;
    ++used_areas_;
    return {};
  }
  const AreaEntry& entry = *next_area(text.size(), 'T');
  const HugeBuffer memory(text.size(), fd_, entry.offset);
  const int error = posix_fallocate(fd_, static_cast<off_t>(entry.offset), static_cast<off_t>(text.size()));
  if (error != 0) throw IoError(error, std::strerror(error), name_);
  std::memcpy(memory.data(), text.data(), text.size());
  super()->num_areas = ++used_areas_;
  super()->crc = super()->checksum();
  return {};
}

void Region::invalidate() { __atomic_store_n(&super()->ready, 0, __ATOMIC_RELEASE); }

}  // namespace cpr
