#pragma once

#include <memory>
#include <utility>

#include "table/snapshot_reader.hpp"

namespace cpr {

// Python's hold on a snapshot: one that is dropped unfinished is aborted, so that it can't block the next.
class SnapshotHandle {
 public:
  explicit SnapshotHandle(std::shared_ptr<SnapshotReader> snapshot) : snapshot_(std::move(snapshot)) {}
  ~SnapshotHandle();
  SnapshotHandle(SnapshotHandle&& other) noexcept = default;
  SnapshotHandle& operator=(SnapshotHandle&& other) noexcept = default;

  SnapshotReader& operator*() const { return *snapshot_; }
  SnapshotReader* operator->() const { return snapshot_.get(); }
  std::shared_ptr<SnapshotReader> shared() const { return snapshot_; }

 private:
  std::shared_ptr<SnapshotReader> snapshot_;
};

}  // namespace cpr
