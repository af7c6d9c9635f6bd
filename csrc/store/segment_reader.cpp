#include "store/segment_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "core/crc32c.hpp"
#include "core/errors.hpp"

namespace cpr::store {
namespace {

constexpr size_t kBlock = size_t{1} << 20;    // bytes of a task
constexpr size_t kPiece = size_t{128} << 10;  // bytes of a read: stay in the second-level cache until checksummed
constexpr size_t kBytesPerThread = size_t{4} << 20;  // less is read before another thread has woken
constexpr int kEndOfFile = -1;

struct Block {
  size_t section = 0;
  uint64_t offset = 0;
  size_t size = 0;
  char* to = nullptr;
  uint32_t crc = 0;
};

std::vector<Block> cut(std::span<const Section> sections) {
  std::vector<Block> blocks;
  for (size_t s = 0; s < sections.size(); ++s) {
    for (size_t begin = 0; begin < sections[s].size; begin += kBlock) {
      char* to = sections[s].to == nullptr ? nullptr : static_cast<char*>(sections[s].to) + begin;
      blocks.push_back({s, sections[s].offset + begin, std::min(kBlock, sections[s].size - begin), to, 0});
    }
  }
  return blocks;
}

// The blocks of one call. A helper that wakes late finds none left and touches nothing of the caller's.
class Reading {
 public:
  Reading(int fd, std::vector<Block> blocks) : fd_(fd), blocks_(std::move(blocks)) {}

  const std::vector<Block>& blocks() const { return blocks_; }
  int error() const { return error_.load(std::memory_order_relaxed); }

  // Reads blocks until all are taken.
  void work() {
    char scratch[kPiece];
    for (;;) {
      const size_t taken = next_.fetch_add(1, std::memory_order_relaxed);
      if (taken >= blocks_.size()) return;
      if (error() == 0) {
        const int code = read(&blocks_[taken], scratch);
        if (code != 0) error_.store(code, std::memory_order_relaxed);
      }
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == blocks_.size()) done_.notify_all();
    }
  }

  // Returns when every block is read.
  void wait() const {
    for (size_t done = done_.load(std::memory_order_acquire); done != blocks_.size();
         done = done_.load(std::memory_order_acquire)) {
      done_.wait(done, std::memory_order_acquire);
    }
  }

 private:
  // 0, an errno, or kEndOfFile.
  int read(Block* block, char* scratch) const {
    for (size_t done = 0; done < block->size;) {
      char* to = block->to == nullptr ? scratch : block->to + done;
      const size_t wanted = std::min(kPiece, block->size - done);
      const ssize_t got = ::pread(fd_, to, wanted, static_cast<off_t>(block->offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno;
      if (got == 0) return kEndOfFile;
      block->crc = crc32c(to, static_cast<size_t>(got), block->crc);
      done += static_cast<size_t>(got);
    }
    return 0;
  }

  const int fd_;
  std::vector<Block> blocks_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
  std::atomic<int> error_{0};
};

}  // namespace

std::vector<uint32_t> read_sections(int fd, const std::string& path, std::span<const Section> sections, int threads) {
  const auto reading = std::make_shared<Reading>(fd, cut(sections));
  size_t bytes = 0;
  for (const Section& section : sections) bytes += section.size;
  const size_t used = std::min<size_t>(static_cast<size_t>(threads), 1 + bytes / kBytesPerThread);
  try {
    for (size_t helper = 1; helper < used; ++helper) std::thread([reading] { reading->work(); }).detach();
  } catch (const std::system_error&) {
    // No thread to be had: this one reads what is left.
  }
  reading->work();
  reading->wait();
  if (reading->error() == kEndOfFile) {
    throw IoError(EIO, "the file ends before a section that its header names", path);
  }
  if (reading->error() != 0) {
    throw IoError(reading->error(), std::generic_category().message(reading->error()), path);
  }
  std::vector<uint32_t> crcs(sections.size(), 0);
  for (const Block& block : reading->blocks()) {
    crcs[block.section] = crc32c_combine(crcs[block.section], block.crc, block.size);
  }
  return crcs;
}

}  // namespace cpr::store
