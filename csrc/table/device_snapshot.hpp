#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/select.hpp"
#include "table/device_staging.hpp"
#include "table/snapshot_reader.hpp"
#include "table/staging.hpp"

namespace cpr {

// What a snapshot needs of its collection.
struct DeviceTables {
  cuda::Device* device = nullptr;
  const std::vector<cuda::TableRecord>* records = nullptr;  // the host's copy: addresses and sizes
  cuda::TableRecord* on_device = nullptr;
  const int64_t* step = nullptr;  // on the device
  DeviceStaging* staging = nullptr;
  std::mutex* step_mutex = nullptr;
  std::vector<HugeBuffer>* saved = nullptr;  // copies of the tables' rows as last saved, where they are kept
};

// A snapshot of tables in device memory, from begin to commit or abort: every selected row as it was when start gave
// its work to the training stream. Rows are recorded on that stream, by kernels that go over all rows a piece at a time
// and by updates that meet a row first; a stream of its own copies the records to pinned memory. The pieces after the
// first are given to the stream between steps, by the reader or by prepare_step, as memory comes back.
//
// Threads: one training thread (start, prepare_step, fail, with step_mutex held) and one reader (next_chunk, commit,
// abort). Locks are taken in the order reader_mutex_, step_mutex, parts_mutex_.
class DeviceSnapshot : public SnapshotReader {
 public:
  struct Request {
    SelectRule rule;                      // kMostUsed, kMostDrifted: bucket and boundary are found on the device
    int64_t quota = 0;                    // their rows
    std::shared_ptr<const RowMask> mask;  // kRows
    ShardRule shards;
  };

  DeviceSnapshot(const DeviceTables& tables, std::vector<Request> requests, std::shared_ptr<StagingPool> pool);
  ~DeviceSnapshot() override = default;
  DeviceSnapshot(const DeviceSnapshot&) = delete;
  DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

  // Gives the first work to the stream; waits for nothing. Without `walks` rows are recorded by updates alone until
  // start_walk.
  void start(bool walks, cuda::Stream stream);
  // Copies everything now; step_mutex is free.
  void take_all();

  // Before an update of `num_ids` ids is given to the stream, which may record the rows of its ids and as many that
  // these evict from the lists: makes room for all of them, and returns num_ids. If they never fit at once, and are
  // fewer than all rows, and the update may be given to the stream in parts, it returns the number of ids, fewer, whose
  // rows there is room for, none evicted among them; else it waits for the walk's end. Waits where the reader is slow,
  // which counts as a stall; throws StagingFull after max_stall_seconds. Does nothing while the stream is captured;
  // before a replay it is to be called.
  int64_t prepare_step(int64_t num_ids, bool in_parts, cuda::Stream stream);
  // Between the parts of such an update: for how many of the next `num_ids` ids (at least 1) there is room for a row
  // each. After max_stall_seconds the snapshot fails, and the update goes on.
  int64_t room_within_step(int64_t num_ids);
  // Rows were written behind the snapshot's back: it takes no more, and the reader gets `why` as an error.
  void fail(const std::string& why);
  // Whether the host knew, when the last step began, that all rows had been met.
  bool was_over_at_step() const { return was_over_at_step_; }
  bool finished() const;

  int64_t step() const override;
  Status status() const override;
  std::vector<int64_t> expected_rows() const override;
  std::vector<int64_t> rows_taken() const override;
  // Waits, and how long the training stream was busy with begin and the pieces, once that is over.
  double stall_seconds() const override;
  void start_walk() override;
  bool next_chunk(double timeout_seconds, Chunk* chunk) override;
  void commit() override;
  void abort() override;
  bool owned_by_this_process() const override;

 private:
  using Part = DeviceStaging::Part;
  using Use = DeviceStaging::Use;

  // What an update may record.
  struct Touched {
    uint64_t bytes = 0;
    bool every_row = false;  // it may be all that there is to take
  };

  // What abort merges back of a table.
  struct Log {
    std::vector<int64_t> rows;  // local
    std::vector<uint32_t> words;
    std::vector<float> drifts;
    size_t handed = 0;  // how many of them are in a copy of rows as last saved
  };

  // Training side; parts_mutex_ is held, and step_mutex where work is given to the training stream.
  void launch(cuda::SnapshotStep step, cuda::SnapshotArgs args, int64_t items);
  cuda::SnapshotArgs args_of(const Part* part) const;
  void upload_requests();
  void tally();
  void count_and_place(const cuda::SnapshotArgs& args);
  void take(const cuda::SnapshotArgs& args, Part* part);
  void copy_info();
  void open(Part* part, cuda::SnapshotStep step);
  void seal_open();
  void to_side(Part* part);
  void poll(Part* part);
  void go_on();
  void look();
  bool find_room(uint64_t bytes);
  bool await_room(uint64_t bytes, std::unique_lock<std::mutex>* parts_lock);
  Touched most_touched(int64_t num_ids) const;
  int64_t touched_capacity() const { return tables_.staging->parts[DeviceStaging::kParts - 1].capacity; }
  int64_t part_ids() const;
  std::string full_message() const;
  void disarm(const std::string& why);
  // No rows are waited for any more.
  bool stopped() const { return status_ != Status::kWalking || !failure_.empty() || aborting_; }
  bool all_free() const;
  void add_stall(double seconds);

  // Reader side; reader_mutex_ is held.
  bool read_ready(bool bounded);
  void read(const Part& part);
  std::vector<int64_t> reserve_logs(const Part& part);
  void log_part(const Part& part);
  void log_record(const cuda::RecordHead& head);
  void merge_logs();
  void save_rows(size_t table, const StagingView& rows, int64_t n);
  void forget_saved();
  void check_failed(const char* call) const;
  void await_info() const;

  const DeviceTables tables_;
  const std::vector<Request> requests_;
  const std::shared_ptr<StagingPool> pool_;
  const pid_t owner_;

  std::unique_ptr<cuda::Event> begun_;
  std::unique_ptr<cuda::Event> info_filled_;
  std::unique_ptr<cuda::Event> info_copied_;
  mutable std::once_flag info_once_;
  mutable int64_t step_ = 0;
  mutable std::vector<int64_t> expected_;

  std::mutex reader_mutex_;  // guards what follows
  std::deque<Chunk> chunks_;
  std::vector<Log> logs_;

  mutable std::mutex parts_mutex_;  // guards what follows, and the staging's parts
  cuda::Stream stream_ = 0;         // of the last call of the training thread
  bool walks_ = false;              // pieces may be given to the stream
  bool swept_ = false;              // the host knows that every row has been met
  uint64_t room_ = 0;               // bytes of the open part that no step has been promised
  Status status_ = Status::kWalking;
  bool aborting_ = false;  // abort waits for the step under way
  std::string failure_;
  std::vector<int64_t> taken_;

  bool was_over_at_step_ = false;
  std::atomic<double> stall_seconds_{0.0};
};

}  // namespace cpr
