#include "cuda/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "cuda/cuda_kernels.hpp"
#include "cuda/seam.hpp"

namespace cpr::cuda {

namespace {

constexpr int64_t kBlocksPerProcessor = 32;

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that a later call doesn't report it again
  throw Error(std::string("CUDA: ") + call + ": " + cudaGetErrorString(error));
}

cudaStream_t handle(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

// The calling thread uses device `index` while it lives.
class Current {
 public:
  explicit Current(int index) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != index) check(cudaSetDevice(index), "cudaSetDevice");
    changed_ = before_ != index;
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// While it lives, what the calling thread asks of events and allocates doesn't spoil a graph that another thread
// captures, as it would by default (cudaStreamCaptureModeGlobal): a reader asks while the trainer captures.
class BesideCapture {
 public:
  BesideCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~BesideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeThreadLocal;
};

class CudaEvent final : public Event {
 public:
  CudaEvent(int index, unsigned flags) : index_(index) {
    const Current current(index_);
    check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  void record(Stream stream) override {
    const Current current(index_);  // stream 0 is the current device's
    check(cudaEventRecord(event_, handle(stream)), "cudaEventRecord");
  }
  void wait(Stream stream) override {
    const Current current(index_);
    check(cudaStreamWaitEvent(handle(stream), event_, 0), "cudaStreamWaitEvent");
  }
  bool done() override {
    const BesideCapture beside;
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "cudaEventQuery");
    return true;
  }
  void synchronize() override {
    const BesideCapture beside;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

  double seconds_since(const Event& earlier) const override {
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_),
          "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  const int index_;
  cudaEvent_t event_ = nullptr;
};

// Bytes that are uploaded in launches; more are copied, which waits for the stream.
constexpr size_t kMostLaunched = size_t{32} << 10;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    name_ = properties.name;
    max_blocks_ = properties.multiProcessorCount * kBlocksPerProcessor;
  }

  std::string name() const override { return name_; }

  void upload(void* device, const void* host, size_t bytes, Stream stream) override {
    const Current current(index_);
    if (bytes > kMostLaunched) {
      check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, handle(stream)), "cudaMemcpyAsync");
      check(cudaStreamSynchronize(handle(stream)), "cudaStreamSynchronize");
      return;
    }
    for (size_t at = 0; at < bytes; at += kLaunchBytes) {
      check(launch_write_bytes(static_cast<char*>(device) + at, static_cast<const char*>(host) + at,
                               std::min(kLaunchBytes, bytes - at), handle(stream)),
            "write bytes");
    }
  }
  void download(void* host, const void* device, size_t bytes, Stream stream) override {
    const Current current(index_);
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, handle(stream)), "cudaMemcpyAsync");
  }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    const Current current(index_);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), "cudaMemcpyAsync");
  }
  void fill(void* memory, int byte, size_t bytes, Stream stream) override {
    const Current current(index_);
    check(cudaMemsetAsync(memory, byte, bytes, handle(stream)), "cudaMemsetAsync");
  }
  std::shared_ptr<void> pinned(size_t bytes) override {
    const Current current(index_);
    const BesideCapture beside;
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    std::memset(memory, 0, bytes);
    return {memory, [](void* held) { cudaFreeHost(held); }};
  }

  std::shared_ptr<const Stream> make_stream() override {
    const Current current(index_);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return {new Stream(reinterpret_cast<Stream>(stream)), [](const Stream* held) {
              cudaStreamDestroy(handle(*held));
              delete held;
            }};
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(index_, cudaEventDisableTiming); }
  std::unique_ptr<Event> make_timer() override { return std::make_unique<CudaEvent>(index_, cudaEventDefault); }
  void synchronize(Stream stream) override {
    const Current current(index_);
    check(cudaStreamSynchronize(handle(stream)), "cudaStreamSynchronize");
  }
  bool capturing(Stream stream) override {
    const Current current(index_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(handle(stream), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  void initialise(const InitialiseArgs& args, Stream stream) override {
    launch(launch_initialise, args, stream, "initialise");
  }
  void lookup(const LookupArgs& args, Stream stream) override { launch(launch_lookup, args, stream, "lookup"); }

  void weight_grad(const WeightGradArgs& args, Stream stream) override {
    launch(launch_weight_grad, args, stream, "weight gradient");
  }
  void rows(const RowArgs& args, int64_t items, Stream stream) override {
    const Current current(index_);
    check(launch_rows(args, items, {handle(stream), max_blocks_}), "rows");
  }
  void snapshot(const SnapshotArgs& args, int64_t items, Stream stream) override {
    const Current current(index_);
    check(launch_snapshot(args, items, {handle(stream), max_blocks_}), "snapshot");
  }

  size_t seam_bytes(int64_t n) override {
    const std::lock_guard<std::mutex> lock(seam_mutex_);
    if (n == seam_items_) return seam_bytes_;
    const Current current(index_);
    seam_bytes_ = cub_bytes(n);
    seam_items_ = n;
    return seam_bytes_;
  }
  void sort_keys(const uint64_t* keys, uint64_t* sorted, int64_t n, int row_bits, void* workspace,
                 Stream stream) override {
    const Current current(index_);
    check(cub_sort_keys(keys, sorted, n, row_bits, workspace, handle(stream)), "sort");
  }
  void exclusive_scan(const uint32_t* counts, uint32_t* sums, int64_t n, void* workspace, Stream stream) override {
    const Current current(index_);
    check(cub_exclusive_scan(counts, sums, n, workspace, handle(stream)), "scan");
  }
  void compact_runs(const uint64_t* keys, uint32_t* starts, uint32_t* count, int64_t n, void* workspace,
                    Stream stream) override {
    const Current current(index_);
    check(cub_compact_runs(keys, starts, count, n, workspace, handle(stream)), "compact");
  }

  void partial_sums(const UpdateArgs& args, Stream stream) override {
    launch(launch_partial_sums, args, stream, "partial sums");
  }
  void update(const UpdateArgs& args, Stream stream) override { launch(launch_update, args, stream, "update"); }
  void enter_sampled(const UpdateArgs& args, Stream stream) override {
    launch(launch_enter_sampled, args, stream, "enter sampled");
  }
  void read_keys(const IdArgs& args, Stream stream) override { launch(launch_read_keys, args, stream, "read keys"); }
  void unique_rows(const UniqueArgs& args, Stream stream) override {
    launch(launch_unique_rows, args, stream, "unique rows");
  }

 private:
  template <typename Args>
  void launch(cudaError_t (*kernel)(const Args&, const Launch&), const Args& args, Stream stream, const char* call) {
    const Current current(index_);
    check(kernel(args, {handle(stream), max_blocks_}), call);
  }

  const int index_;
  std::string name_;
  int64_t max_blocks_ = 1;
  std::mutex seam_mutex_;  // guards what follows: asked for the same number in every step
  int64_t seam_items_ = -1;
  size_t seam_bytes_ = 0;
};

}  // namespace

std::shared_ptr<Device> make_cuda_device(int index) { return std::make_shared<CudaDevice>(index); }

}  // namespace cpr::cuda
