#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/select.hpp"
#include "table/snapshot_reader.hpp"
#include "table/staging.hpp"
#include "table/table.hpp"

namespace cpr {

// One snapshot from begin to commit or abort: every selected row as it was when it was constructed.
//
// Threads: constructed at a step boundary. The walk runs on a thread of its own (or inside start() if blocking) and
// takes step_mutex only to seal what the update pass staged. next_chunk, commit and abort are called by one reader
// thread at a time; reserve and fail by the training thread, reserve with step_mutex held.
class Snapshot : public SnapshotReader {
 public:
  struct Part {
    Table* table = nullptr;
    SelectRule rule;
    std::shared_ptr<const RowMask> mask;  // of the rule, for kRows
    int64_t expected_rows = 0;
    ShardRule shards;
  };

  // Rows that the walk takes and has not settled yet, their words as it read them; those that changed meanwhile.
  static constexpr int64_t kWalkBlock = 256;
  struct WalkedBlock {
    int64_t size = 0;
    uint32_t words[kWalkBlock];
    int64_t rows[kWalkBlock];
  };

  // `ended`: called when what it took is dropped or has been merged back.
  Snapshot(std::vector<Part> parts, int64_t step, std::mutex* step_mutex, std::shared_ptr<StagingPool> pool,
           std::function<void()> ended = nullptr);
  // The rest of the walk of a snapshot whose process died, which takes no row; start_walk or abort goes through it.
  static std::shared_ptr<Snapshot> resume(std::vector<Part> parts, int64_t step, std::mutex* step_mutex,
                                          std::shared_ptr<StagingPool> pool);
  ~Snapshot() override;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Flips the parity of the tables that are taken and, if `walks`, starts the walk. step_mutex is held unless blocking.
  // If no thread can be started, throws with the parity as it was.
  void start(bool blocking, bool walks);
  void start_walk() override;

  int64_t step() const override { return step_; }
  Status status() const override;
  std::vector<int64_t> expected_rows() const override;
  std::vector<int64_t> rows_taken() const override;
  double stall_seconds() const override { return stall_seconds_.load(std::memory_order_relaxed); }

  // Update pass: makes room for `rows` rows of every table in `needs` [tables], then hands out rule and staging. Waits
  // for the reader beyond twice the pool's bound, which counts as a stall; throws StagingFull if no reader comes.
  void reserve(const std::vector<int64_t>& needs);
  void attach(int table, TableView* view) const;
  bool walking() const { return !walked_.load(std::memory_order_acquire); }

  // Rows were written behind the engine's back: the walk ends without taking more, and the reader gets `why` as an
  // error.
  void fail(const std::string& why);
  // Returns when the walk is over; one that was not started is gone through here. Only after fail or the last chunk.
  void join();

  bool next_chunk(double timeout_seconds, Chunk* chunk) override;
  void commit() override;
  void abort() override;  // takes step_mutex
  bool finished() const;
  bool owned_by_this_process() const override;

 private:
  struct TableTask {
    Part part;
    bool taken = false;  // takes part: the selection isn't none
    StagingPtr touched;
    std::atomic<int64_t> rows_staged{0};
    // What abort merges back: rows whose word held anything, or all where a copy is kept. Owned by the reader.
    std::vector<int64_t> log_rows;
    std::vector<uint32_t> log_words;
    std::vector<float> log_drifts;  // where it is tracked
  };

  void walk(bool blocking);
  void walk_table(int index, bool blocking);
  void walk_rows(int index, const TableView& view, int64_t begin, int64_t end, StagingPtr* buffer, bool blocking,
                 TrackerDelta* delta);
  static bool scan(const TableView& table, const SelectRule& rule, int64_t* row, int64_t end, int64_t free,
                   StagingBuffer* buffer, WalkedBlock* block);
  static void log_block(const TableView& view, Table* table, const StagingBuffer& buffer, const WalkedBlock& block);
  static void copy(const TableView& view, StagingBuffer* buffer, int64_t n);
  static int64_t validate(const TableView& table, const SelectRule& rule, StagingBuffer* buffer, WalkedBlock* block,
                          TrackerDelta* delta);
  // Called by the staging pool under its lock: takes none.
  bool reader_starves() const { return reader_waits_.load() && num_sealed_.load() == 0; }
  StagingPtr walk_buffer(int index, bool blocking);
  void complete();
  void try_complete();
  void seal(StagingPtr buffer);
  void await_sealed(double timeout_seconds, std::unique_lock<std::mutex>* lock);
  void log_buffer(const StagingBuffer& buffer);
  std::string failure() const;
  SelectRule current_rule(const TableTask& task) const;

  std::deque<TableTask> tables_;
  const int64_t step_;
  std::mutex* const step_mutex_;
  const std::shared_ptr<StagingPool> pool_;
  const std::function<void()> ended_;
  const pid_t owner_;
  std::mutex join_mutex_;  // guards what follows
  std::unique_ptr<std::thread> walker_;
  bool unwalked_ = false;  // started without a walk, and none has been since
  std::atomic<bool> discard_{false};
  std::atomic<bool> swept_{false};   // the walk has settled every row
  std::atomic<bool> walked_{false};  // and what the update pass staged has been sealed
  std::atomic<double> stall_seconds_{0.0};

  std::mutex reader_mutex_;  // guards chunks_ and the logs; taken before step_mutex and queue_mutex_
  std::atomic<bool> reader_waits_{false};
  std::atomic<int64_t> num_sealed_{0};  // size of sealed_

  mutable std::mutex queue_mutex_;  // guards what follows
  std::condition_variable queue_changed_;
  std::deque<StagingPtr> sealed_;
  Status status_ = Status::kWalking;
  std::string failure_;
  std::deque<Chunk> chunks_;
};

}  // namespace cpr
