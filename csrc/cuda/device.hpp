#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/args.hpp"
#include "cuda/row_args.hpp"
#include "cuda/snapshot_args.hpp"
#include "cuda/unique_args.hpp"

namespace cpr::cuda {

// A queue of work in order: torch's handle of a CUDA stream, or one of Device::make_stream.
using Stream = uintptr_t;

// A point in the work of a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream stream) = 0;
  virtual void wait(Stream stream) = 0;  // work given to `stream` from now on begins after what was recorded
  virtual bool done() = 0;               // what was recorded has ended; true before the first record
  virtual void synchronize() = 0;
  // Seconds from what `earlier` recorded until what this did. Both were made by make_timer, and are done.
  virtual double seconds_since(const Event& earlier) const = 0;
};

// One GPU, or what stands for it in tests. Calls give work to a stream and return; memory that they name stays valid
// until it has ended. Throws Error where the device fails. Any thread may call.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;

  // For little memory: it is read before upload returns. download has written once the stream was synchronised.
  virtual void upload(void* device, const void* host, size_t bytes, Stream stream) = 0;
  virtual void download(void* host, const void* device, size_t bytes, Stream stream) = 0;
  virtual void copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual void fill(void* memory, int byte, size_t bytes, Stream stream) = 0;
  // Pinned memory of the host, zeros, which kernels may write too; freed with the last owner.
  virtual std::shared_ptr<void> pinned(size_t bytes) = 0;

  virtual std::shared_ptr<const Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual std::unique_ptr<Event> make_timer() = 0;  // an event that keeps its time
  virtual void synchronize(Stream stream) = 0;
  // Whether the stream's work is recorded into a graph: nothing may wait for it.
  virtual bool capturing(Stream stream) = 0;

  // Kernels. Their bodies, and what they do, are in the .inl files of the same names.
  virtual void initialise(const InitialiseArgs& args, Stream stream) = 0;
  virtual void lookup(const LookupArgs& args, Stream stream) = 0;
  virtual void weight_grad(const WeightGradArgs& args, Stream stream) = 0;
  // One step of args.step; `items`: about how many groups there is work for.
  virtual void rows(const RowArgs& args, int64_t items, Stream stream) = 0;
  virtual void snapshot(const SnapshotArgs& args, int64_t items, Stream stream) = 0;

  // The seam to what a library does: CUB on the device, the standard library on the host.
  // Bytes of workspace that any of the three needs for `n` items.
  virtual size_t seam_bytes(int64_t n) = 0;
  // Stable, by bits [32, 32 + row_bits).
  virtual void sort_keys(const uint64_t* keys, uint64_t* sorted, int64_t n, int row_bits, void* workspace,
                         Stream stream) = 0;
  // sums[i] = counts[0] + ... + counts[i - 1].
  virtual void exclusive_scan(const uint32_t* counts, uint32_t* sums, int64_t n, void* workspace, Stream stream) = 0;
  // Where runs of equal rows begin among sorted keys, and their number.
  virtual void compact_runs(const uint64_t* keys, uint32_t* starts, uint32_t* count, int64_t n, void* workspace,
                            Stream stream) = 0;

  virtual void partial_sums(const UpdateArgs& args, Stream stream) = 0;
  virtual void update(const UpdateArgs& args, Stream stream) = 0;
  virtual void enter_sampled(const UpdateArgs& args, Stream stream) = 0;

  // Of one table's unique rows, without an optimizer; for sums of gradients after partial_sums.
  virtual void read_keys(const IdArgs& args, Stream stream) = 0;
  virtual void unique_rows(const UniqueArgs& args, Stream stream) = 0;
};

}  // namespace cpr::cuda
