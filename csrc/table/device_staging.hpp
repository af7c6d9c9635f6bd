#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/snapshot_args.hpp"

namespace cpr {

// Memory of a collection's snapshots and row operations: the caller's on the device, laid out here, and pinned memory
// of the host. The staging area is cut into two parts for the walk, used in turn, and two for rows that updates meet
// first.
class DeviceStaging {
 public:
  enum class Use {
    kFree,
    kOpen,     // updates record rows there
    kFilling,  // kernels and the copy of the head are on their way
    kCopying,  // the records are on their way to the host
    kReady,    // on the host
  };

  struct Part {
    Use use = Use::kFree;
    bool walk = false;
    char* records = nullptr;  // on the device
    int64_t capacity = 0;
    cuda::PieceHead* piece = nullptr;     // of a walk's, on the device
    int64_t* piece_records = nullptr;     // [tables], behind it
    cuda::TouchedArea* sealed = nullptr;  // of the others
    char* copied = nullptr;               // on the host
    cuda::PieceHead* piece_copied = nullptr;
    int64_t* piece_records_copied = nullptr;
    cuda::TouchedArea* sealed_copied = nullptr;
    uint64_t bytes = 0;                   // of the records, from kCopying on
    std::unique_ptr<cuda::Event> begun;   // on the training stream: a walk's piece
    std::unique_ptr<cuda::Event> filled;  // likewise
    std::unique_ptr<cuda::Event> copied_at;
  };

  // Bytes on the device. Throws std::invalid_argument where max_staging_bytes is too small for the rows.
  static int64_t bytes(cuda::Device* device, const std::vector<cuda::TableRecord>& tables, int64_t max_staging_bytes);

  // `memory`: that many bytes, aligned to 16, valid until `owner` is let go.
  DeviceStaging(cuda::Device* device, const std::vector<cuda::TableRecord>& tables, int64_t max_staging_bytes,
                void* memory, std::shared_ptr<void> owner, cuda::Stream stream);

  static constexpr int kParts = 4;  // the first two are the walk's
  Part parts[kParts];
  int64_t tiles = 0;
  int64_t tile_rows = 0;
  cuda::SnapshotArgs args;  // what is the same for all launches
  int64_t partial_bytes = 0;
  void* seam = nullptr;
  cuda::PieceHead* last_piece = nullptr;  // of a walk that takes nothing
  int64_t* last_records = nullptr;
  cuda::TableRequest* requests = nullptr;
  // Steps done and [tables] rows expected lie behind each other, here as there.
  int64_t* begun_after_copied = nullptr;
  int64_t* expected_copied = nullptr;
  std::vector<uint8_t*> masks;  // on the device, by table
  char* scratch = nullptr;      // of row operations
  int64_t scratch_bytes = 0;
  int64_t largest_record = 0;
  cuda::Stream side() const { return *side_; }

 private:
  DeviceStaging() = default;
  int64_t place(cuda::Device* device, const std::vector<cuda::TableRecord>& tables, int64_t max_staging_bytes,
                void* memory);

  int64_t* first_tile_ = nullptr;
  std::shared_ptr<void> owner_;
  std::shared_ptr<void> pinned_;
  std::shared_ptr<const cuda::Stream> side_;
};

}  // namespace cpr
