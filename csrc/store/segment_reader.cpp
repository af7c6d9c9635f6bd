#include "store/segment_reader.hpp"

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
constexpr size_t kLeastBlockRows = 64;  // unless these have more than
constexpr size_t kMostBlockBytes = size_t{16} << 20;

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
int read_piece(System* system, int fd, uint64_t offset, size_t size, void* to, uint32_t* crc) {
  for (size_t done = 0; done < size;) {
    char* at = static_cast<char*>(to) + done;
    const ssize_t got = system->pread(fd, at, size - done, static_cast<off_t>(offset + done));
    if (got == -EINTR) continue;
    if (got < 0) return static_cast<int>(-got);
    if (got == 0) return EIO;
    *crc = crc32c(at, static_cast<size_t>(got), *crc);
    done += static_cast<size_t>(got);
  }
  return 0;
}

void read_block(System* system, Block* block) {
  char scratch[kPiece];
  const Section& part = block->part;
  for (size_t done = 0; done < part.size && block->error == 0; done += kPiece) {
    void* to = part.to == nullptr ? scratch : static_cast<char*>(part.to) + done;
    block->error = read_piece(system, part.fd, part.offset + done, std::min(kPiece, part.size - done), to, &block->crc);
  }
}

// Rows of one table in one segment, cut into blocks.
struct Source {
  const StoredRows* stored = nullptr;
  RowTaker* taker = nullptr;
  int64_t block_rows = 0;
  size_t first_block = 0;

  size_t row_size() const { return sizeof(int64_t) + stored->weight_size + stored->state_size; }
};

// Blocks of stored rows: read, checked, handed on.
class RowBlocks {
 public:
  RowBlocks(std::span<const StoredRows> stored, std::span<RowTaker* const> takers, int threads, System* system)
      : system_(system) {
    size_t blocks = 0;
    for (size_t s = 0; s < stored.size(); ++s) {
      Source source{&stored[s], takers[s], 0, blocks};
      const size_t least = std::clamp<size_t>(kMostBlockBytes / source.row_size(), 1, kLeastBlockRows);
      source.block_rows = static_cast<int64_t>(std::max(least, kBlockRowBytes / source.row_size()));
      memory_size_ = std::max(memory_size_, static_cast<size_t>(source.block_rows) * source.row_size());
      bytes_ += static_cast<size_t>(stored[s].rows) * source.row_size();
      blocks += static_cast<size_t>((stored[s].rows + source.block_rows - 1) / source.block_rows);
      sources_.push_back(source);
    }
    crcs_.resize(blocks);
    threads_ = threads_for(bytes_, threads);
    memory_ = std::make_unique_for_overwrite<char[]>(threads_ * memory_size_);
  }

  size_t tasks() const { return crcs_.size(); }
  size_t threads() const { return threads_; }

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

  std::vector<StoredCrcs> finish() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
    std::vector<StoredCrcs> found(sources_.size());
    for (size_t task = 0; task < crcs_.size(); ++task) {
      const Source& source = source_of(task);
      StoredCrcs& whole = found[static_cast<size_t>(&source - sources_.data())];
      const auto n = static_cast<size_t>(rows_of(source, task));
      whole.ids = crc32c_combine(whole.ids, crcs_[task].ids, n * sizeof(int64_t));
      whole.weight = crc32c_combine(whole.weight, crcs_[task].weight, n * source.stored->weight_size);
      if (source.stored->state_size != 0) {
        whole.state = crc32c_combine(whole.state, crcs_[task].state, n * source.stored->state_size);
      }
    }
    return found;
  }

 private:
  const Source& source_of(size_t task) const {
    const auto later = [](size_t block, const Source& source) { return block < source.first_block; };
    return *(std::upper_bound(sources_.begin(), sources_.end(), task, later) - 1);
  }
  static int64_t first_of(const Source& source, size_t task) {
    return static_cast<int64_t>(task - source.first_block) * source.block_rows;
  }
  static int64_t rows_of(const Source& source, size_t task) {
    return std::min(source.block_rows, source.stored->rows - first_of(source, task));
  }

  void read(size_t task, char* ids) {
    const Source& source = source_of(task);
    const StoredRows& stored = *source.stored;
    const auto n = static_cast<size_t>(rows_of(source, task));
    const auto first = static_cast<uint64_t>(first_of(source, task));
    const size_t ids_size = n * sizeof(int64_t);
    const size_t state_size = n * stored.state_size;
    char* state = ids + ids_size;
    char* weight = state + state_size;  // last: state is whole float32s, weight may be anything
    StoredCrcs& crcs = crcs_[task];
    fetch(stored, stored.ids_at + first * sizeof(int64_t), ids_size, ids, &crcs.ids);
    check(stored, reinterpret_cast<const int64_t*>(ids), n);
    const auto* rows = reinterpret_cast<const int64_t*>(ids);
    void* place = source.taker->place(rows, static_cast<int64_t>(n));
    fetch(stored, stored.weight_at + first * stored.weight_size, n * stored.weight_size,
          place == nullptr ? weight : place, &crcs.weight);
    if (state_size != 0) fetch(stored, stored.state_at + first * stored.state_size, state_size, state, &crcs.state);
    source.taker->take(rows, static_cast<int64_t>(n), place == nullptr ? weight : nullptr,
                       state_size == 0 ? nullptr : reinterpret_cast<const float*>(state));
  }

  void fetch(const StoredRows& stored, uint64_t offset, size_t size, void* to, uint32_t* crc) const {
    for (size_t done = 0; done < size; done += kPiece) {
      const int code = read_piece(system_, stored.fd, offset + done, std::min(kPiece, size - done),
                                  static_cast<char*>(to) + done, crc);
      if (code != 0) throw IoError(code, std::generic_category().message(code), stored.path);
    }
  }

  static void check(const StoredRows& stored, const int64_t* ids, size_t n) {
    const auto [least, most] = std::minmax_element(ids, ids + n);
    if (*least >= stored.begin && *most < stored.end) return;
    throw std::out_of_range(stored.path + ": " + stored.owner + ": rows: expected rows of [" +
                            std::to_string(stored.begin) + ", " + std::to_string(stored.end) + "), got " +
                            std::to_string(*least) + ".." + std::to_string(*most));
  }

  System* const system_;
  std::vector<Source> sources_;  // those without rows have no block
  size_t bytes_ = 0;
  size_t threads_ = 1;
  size_t memory_size_ = 0;  // bytes a thread, for one block
  std::unique_ptr<char[]> memory_;
  std::vector<StoredCrcs> crcs_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

std::vector<int64_t> read_sections(std::span<const Section> sections, int threads, System* system) {
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
  run_blocks(blocks.size(), threads_for(bytes, threads),
             [&](size_t task, size_t) { read_block(system, &blocks[task]); });
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

std::vector<StoredCrcs> read_rows(std::span<const StoredRows> stored, std::span<RowTaker* const> takers, int threads,
                                  System* system) {
  RowBlocks blocks(stored, takers, threads, system);
  run_blocks(blocks.tasks(), blocks.threads(), [&](size_t task, size_t thread) { blocks.run(task, thread); });
  return blocks.finish();
}

}  // namespace cpr::store
