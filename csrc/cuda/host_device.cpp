#include "cuda/host_device.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host_kernels.hpp"
#include "cuda/host_queues.hpp"

namespace cpr::cuda {

namespace {

const HostKernels& kernels_for(int lanes) {
  switch (lanes) {
    case 1:
      return host_kernels<1>();
    case 8:
      return host_kernels<8>();
    case 32:
      return host_kernels<32>();
    default:
      throw std::invalid_argument("lanes: expected 1, 8 or 32, got " + std::to_string(lanes));
  }
}

class HostDevice final : public Device {
 public:
  HostDevice(int lanes, uint64_t seed, bool deferred)
      : lanes_(lanes), kernels_(kernels_for(lanes)), queues_(std::make_shared<HostQueues>(seed, deferred)) {}

  std::string name() const override { return "host, " + std::to_string(lanes_) + " lanes"; }

  void upload(void* device, const void* host, size_t bytes, Stream stream) override {
    const char* from = static_cast<const char*>(host);
    queues_->push(stream, [device, held = std::vector<char>(from, from + bytes)] {
      std::copy(held.begin(), held.end(), static_cast<char*>(device));
    });
  }
  void download(void* host, const void* device, size_t bytes, Stream stream) override {
    copy(host, device, bytes, stream);
  }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    queues_->push(stream, [=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  void fill(void* memory, int byte, size_t bytes, Stream stream) override {
    queues_->push(stream, [=] {
      if (bytes > 0) std::memset(memory, byte, bytes);
    });
  }
  std::shared_ptr<void> pinned(size_t bytes) override {
    auto memory = std::make_shared<std::vector<uint64_t>>((bytes + 7) / 8, 0);
    return {memory, memory->data()};
  }

  std::shared_ptr<const Stream> make_stream() override {
    auto queues = queues_;
    return {new Stream(queues->make_stream()), [queues](const Stream* stream) {
              queues->forget(*stream);
              delete stream;
            }};
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(queues_.get()); }
  std::unique_ptr<Event> make_timer() override { return make_event(); }
  void synchronize(Stream stream) override { queues_->drain(stream); }
  bool capturing(Stream) override { return false; }

  void initialise(const InitialiseArgs& args, Stream stream) override {
    launch(kernels_.initialise, args, args.view.num_rows, stream);
  }
  void lookup(const LookupArgs& args, Stream stream) override { launch(kernels_.lookup, args, args.bags, stream); }

  void weight_grad(const WeightGradArgs& args, Stream stream) override {
    launch(kernels_.weight_grad, args, args.num_ids, stream);
  }
  void rows(const RowArgs& args, int64_t items, Stream stream) override { launch(kernels_.rows, args, items, stream); }
  void snapshot(const SnapshotArgs& args, int64_t items, Stream stream) override {
    launch(kernels_.snapshot, args, items, stream);
  }

  size_t seam_bytes(int64_t) override { return 0; }
  void sort_keys(const uint64_t* keys, uint64_t* sorted, int64_t n, int row_bits, void*, Stream stream) override {
    queues_->push(stream, [=] {
      std::copy_n(keys, n, sorted);
      const uint64_t mask = ((uint64_t{1} << row_bits) - 1) << 32;
      std::stable_sort(sorted, sorted + n, [mask](uint64_t a, uint64_t b) { return (a & mask) < (b & mask); });
    });
  }
  void exclusive_scan(const uint32_t* counts, uint32_t* sums, int64_t n, void*, Stream stream) override {
    queues_->push(stream, [=] {
      uint32_t sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t own = counts[i];
        sums[i] = sum;
        sum += own;
      }
    });
  }
  void compact_runs(const uint64_t* keys, uint32_t* starts, uint32_t* count, int64_t n, void*, Stream stream) override {
    queues_->push(stream, [=] {
      uint32_t runs = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32) starts[runs++] = static_cast<uint32_t>(i);
      }
      *count = runs;
    });
  }
  void partial_sums(const UpdateArgs& args, Stream stream) override {
    launch(kernels_.partial_sums, args, args.num_ids / kSumFanout + 1, stream);
  }
  void update(const UpdateArgs& args, Stream stream) override {
    launch(kernels_.update, args, args.end_window - args.begin_window, stream);
  }
  void enter_sampled(const UpdateArgs& args, Stream stream) override {
    launch(kernels_.enter_sampled, args, (args.end_window - args.begin_window) * kWindowKeys / lanes_ + 1, stream);
  }
  void read_keys(const IdArgs& args, Stream stream) override {
    launch(kernels_.read_keys, args, args.num_ids / lanes_ + 1, stream);
  }
  void unique_rows(const UniqueArgs& args, Stream stream) override {
    launch(kernels_.unique_rows, args, args.update.num_ids, stream);
  }

 private:
  template <typename Args>
  void launch(void (*kernel)(const Args&, const HostKernels::Order&), const Args& args, int64_t items, Stream stream) {
    queues_->push(stream, [kernel, args, order = queues_->draw_order(items)] { kernel(args, order); });
  }

  const int lanes_;
  const HostKernels& kernels_;
  const std::shared_ptr<HostQueues> queues_;
};

}  // namespace

std::shared_ptr<Device> make_host_device(int lanes, uint64_t seed, bool deferred) {
  return std::make_shared<HostDevice>(lanes, seed, deferred);
}

}  // namespace cpr::cuda
