#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "table/device_collection.hpp"

namespace cpr {

// Writes rows from the host into tables of a device, as DeviceCollection::load_rows does, from any threads and no row
// twice. They go through the memory of snapshots, of which none may begin meanwhile: while a block is on its way to the
// device others are read. It holds the collection's lock.
class DeviceLoader {
 public:
  // Throws what load_rows throws.
  DeviceLoader(DeviceCollection* collection, cuda::Stream stream);
  ~DeviceLoader();
  DeviceLoader(const DeviceLoader&) = delete;
  DeviceLoader& operator=(const DeviceLoader&) = delete;

  // Global rows, which were checked; `weight` [n, dim] and `state` [n, columns] (nullptr: none) are read before it
  // returns.
  void write(int64_t table, const int64_t* rows, int64_t n, const void* weight, const float* state, bool dirty);
  // Returns when all rows are in their tables.
  void finish();

 private:
  using Part = DeviceStaging::Part;

  void write_block(Part* part, cuda::RowArgs args, int64_t table, const int64_t* rows, const void* weight,
                   const float* state);

  DeviceCollection& collection_;
  const cuda::Stream stream_;
  const std::unique_lock<std::mutex> lock_;
  std::mutex parts_[DeviceStaging::kParts];  // a part is one thread's at a time
  std::atomic<uint32_t> turn_{0};
};

}  // namespace cpr
