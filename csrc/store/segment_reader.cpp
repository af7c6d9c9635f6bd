#include "store/segment_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "core/crc32c.hpp"
#include "core/errors.hpp"
#include "store/blocks.hpp"

namespace cpr::store {
namespace {

constexpr size_t kBlock = size_t{1} << 20;           // bytes of a task
constexpr size_t kPiece = size_t{128} << 10;         // bytes of a read: stay in cache until checksummed
constexpr size_t kBytesPerThread = size_t{2} << 20;  // less is read before another thread has woken
constexpr size_t kBlockRowBytes = size_t{512} << 10;
constexpr int64_t kLeastBlockRows = 64;

struct Block {
  size_t section = 0;
  Section part;
  uint32_t crc = 0;
  int error = 0;
};

size_t threads_for(size_t bytes, int threads) {
  return std::min<size_t>(static_cast<size_t>(threads), 1 + bytes / kBytesPerThread);
}

// Reads size bytes and adds them to *crc; returns 0 or an errno.
int read_piece(int fd, uint64_t offset, size_t size, void* to, uint32_t* crc) {
  for (size_t done = 0; done < size;) {
    char* at = static_cast<char*>(to) + done;
    const ssize_t got = ::pread(fd, at, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;
    *crc = crc32c(at, static_cast<size_t>(got), *crc);
    done += static_cast<size_t>(got);
  }
  return 0;
}

void read_block(Block* block) {
  char scratch[kPiece];
  const Section& part = block->part;
  for (size_t done = 0; done < part.size && block->error == 0; done += kPiece) {
    void* to = part.to == nullptr ? scratch : static_cast<char*>(part.to) + done;
    block->error = read_piece(part.fd, part.offset + done, std::min(kPiece, part.size - done), to, &block->crc);
  }
}

// One block of stored rows: read, checked, handed on.
class RowBlocks {
 public:
  RowBlocks(const StoredRows& stored, size_t threads, RowTaker* taker) : stored_(stored), taker_(taker) {
    const size_t row_size = sizeof(int64_t) + stored.weight_size + stored.state_size;
    block_rows_ = std::max(kLeastBlockRows, static_cast<int64_t>(kBlockRowBytes / row_size));
    crcs_.resize(static_cast<size_t>((stored.rows + block_rows_ - 1) / block_rows_));
    memory_size_ = static_cast<size_t>(block_rows_) * row_size;
    memory_ = std::make_unique_for_overwrite<char[]>(threads * memory_size_);
  }

  size_t tasks() const { return crcs_.size(); }

  void run(size_t task, size_t thread) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      read(task, memory_.get() + thread * memory_size_);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      failed_.store(true, std::memory_order_relaxed);
      if (error_ == nullptr) error_ = std::current_exception();
    }
  }

  StoredCrcs finish() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
    StoredCrcs whole;
    for (size_t task = 0; task < crcs_.size(); ++task) {
      const auto n = static_cast<size_t>(rows_of(task));
      whole.ids = crc32c_combine(whole.ids, crcs_[task].ids, n * sizeof(int64_t));
      whole.weight = crc32c_combine(whole.weight, crcs_[task].weight, n * stored_.weight_size);
      if (stored_.state_size != 0) {
        whole.state = crc32c_combine(whole.state, crcs_[task].state, n * stored_.state_size);
      }
    }
    return whole;
  }

 private:
  int64_t first_of(size_t task) const { return static_cast<int64_t>(task) * block_rows_; }
  int64_t rows_of(size_t task) const { return std::min(block_rows_, stored_.rows - first_of(task)); }

  void read(size_t task, char* ids) {
    const auto n = static_cast<size_t>(rows_of(task));
    const auto first = static_cast<uint64_t>(first_of(task));
    const size_t ids_size = n * sizeof(int64_t);
    const size_t state_size = n * stored_.state_size;
    char* state = ids + ids_size;
    char* weight = state + state_size;  // last: state is whole float32s, weight may be anything
    StoredCrcs& crcs = crcs_[task];
    fetch(stored_.ids_at + first * sizeof(int64_t), ids_size, ids, &crcs.ids);
    check(reinterpret_cast<const int64_t*>(ids), n);
    const auto* rows = reinterpret_cast<const int64_t*>(ids);
    void* place = taker_->place(rows, static_cast<int64_t>(n));
    fetch(stored_.weight_at + first * stored_.weight_size, n * stored_.weight_size, place == nullptr ? weight : place,
          &crcs.weight);
    if (state_size != 0) fetch(stored_.state_at + first * stored_.state_size, state_size, state, &crcs.state);
    taker_->take(rows, static_cast<int64_t>(n), place == nullptr ? weight : nullptr,
                 state_size == 0 ? nullptr : reinterpret_cast<const float*>(state));
  }

  void fetch(uint64_t offset, size_t size, void* to, uint32_t* crc) const {
    for (size_t done = 0; done < size; done += kPiece) {
      const int code =
          read_piece(stored_.fd, offset + done, std::min(kPiece, size - done), static_cast<char*>(to) + done, crc);
      if (code != 0) throw IoError(code, std::generic_category().message(code), stored_.path);
    }
  }

  void check(const int64_t* ids, size_t n) const {
    const auto [least, most] = std::minmax_element(ids, ids + n);
    if (*least >= stored_.begin && *most < stored_.end) return;
    throw std::out_of_range("rows: expected rows of [" + std::to_string(stored_.begin) + ", " +
                            std::to_string(stored_.end) + "), got " + std::to_string(*least) + ".." +
                            std::to_string(*most));
  }

  const StoredRows& stored_;
  RowTaker* const taker_;
  int64_t block_rows_ = 0;
  size_t memory_size_ = 0;  // bytes a thread, for one block
  std::unique_ptr<char[]> memory_;
  std::vector<StoredCrcs> crcs_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

std::vector<int64_t> read_sections(std::span<const Section> sections, int threads) {
  std::vector<Block> blocks;
  size_t bytes = 0;
  for (size_t s = 0; s < sections.size(); ++s) {
    bytes += sections[s].size;
    for (size_t begin = 0; begin < sections[s].size; begin += kBlock) {
      Section part = sections[s];
      part.offset += begin;
      part.size = std::min(kBlock, part.size - begin);
      if (part.to != nullptr) part.to = static_cast<char*>(part.to) + begin;
      blocks.push_back({s, part, 0, 0});
    }
  }
  run_blocks(blocks.size(), threads_for(bytes, threads), [&](size_t task, size_t) { read_block(&blocks[task]); });
  std::vector<int64_t> results(sections.size(), 0);
  for (const Block& block : blocks) {
    int64_t& result = results[block.section];
    if (result < 0) continue;
    if (block.error != 0) {
      result = -block.error;
    } else {
      result = crc32c_combine(static_cast<uint32_t>(result), block.crc, block.part.size);
    }
  }
  return results;
}

StoredCrcs read_rows(const StoredRows& stored, int threads, RowTaker* taker) {
  const size_t bytes = static_cast<size_t>(stored.rows) * (sizeof(int64_t) + stored.weight_size + stored.state_size);
  const size_t used = threads_for(bytes, threads);
  RowBlocks blocks(stored, used, taker);
  run_blocks(blocks.tasks(), used, [&](size_t task, size_t thread) { blocks.run(task, thread); });
  return blocks.finish();
}

}  // namespace cpr::store
