#include "table/device_staging.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "table/device_memory.hpp"

namespace cpr {

namespace {

constexpr int64_t kMostTileRows = 1024;
constexpr int64_t kLeastTileRows = 32;
constexpr int64_t kMostTallies = 4096;  // copies of the tallies of all tables
constexpr int64_t kMostCopies = 64;
constexpr int64_t kLeastScratch = 1 << 16;
constexpr int64_t kMostScratch = 4 << 20;

// Eighths of the staging memory.
constexpr int64_t kWalkShare = 3;
constexpr int64_t kTouchedShare = 1;

int64_t share(int64_t bytes, int64_t eighths) { return bytes * eighths / 8 / 16 * 16; }

}  // namespace

int64_t DeviceStaging::bytes(cuda::Device* device, const std::vector<cuda::TableRecord>& tables,
                             int64_t max_staging_bytes) {
  DeviceStaging layout;
  return layout.place(device, tables, max_staging_bytes, nullptr);
}

int64_t DeviceStaging::place(cuda::Device* device, const std::vector<cuda::TableRecord>& tables,
                             int64_t max_staging_bytes, void* memory) {
  const auto n = static_cast<int64_t>(tables.size());
  for (const cuda::TableRecord& table : tables) {
    largest_record = std::max(largest_record, cuda::record_bytes(table.view.format));
  }
  const int64_t walk_bytes = share(max_staging_bytes, kWalkShare);
  const int64_t least = largest_record * kLeastTileRows;
  if (walk_bytes < least) {
    throw std::invalid_argument("max_staging_bytes: expected at least " +
                                std::to_string((least + 16) * 8 / kWalkShare) + " for rows of " +
                                std::to_string(largest_record) + " bytes, got " + std::to_string(max_staging_bytes));
  }
  tile_rows = std::clamp(walk_bytes / 4 / largest_record, kLeastTileRows, kMostTileRows);
  int64_t mask_bytes = 0;
  tiles = 0;
  for (const cuda::TableRecord& table : tables) {
    tiles += (table.view.num_rows + tile_rows - 1) / tile_rows;
    mask_bytes += (table.view.num_rows + 7) / 8;
  }
  Places places(memory);
  args.num_tables = n;
  args.tile_rows = tile_rows;
  args.copies = std::clamp<int64_t>(kMostTallies / n, 1, kMostCopies);
  partial_bytes = args.copies * n * cuda::kTallySize * static_cast<int64_t>(sizeof(uint32_t));
  args.first_tile = first_tile_ = places.take<int64_t>(n + 1);
  args.partial = places.take<uint32_t>(args.copies * n * cuda::kTallySize);
  args.tallies = places.take<int64_t>(n * cuda::kTallySize);
  args.requests = requests = places.take<cuda::TableRequest>(n);
  args.begun_after = places.take<int64_t>(1);
  args.expected = places.take<int64_t>(n);
  args.counts = places.take<uint32_t>(tiles + 1);
  args.sums = places.take<uint32_t>(tiles + 1);
  args.table_bytes = places.take<uint64_t>(n);
  args.cursor = places.take<int64_t>(1);
  args.limit = places.take<int64_t>(1);
  args.area = places.take<cuda::TouchedArea>(1);
  last_piece = places.take<cuda::PieceHead>(1);
  last_records = places.take<int64_t>(n);
  uint8_t* mask = places.take<uint8_t>(mask_bytes);
  for (const cuda::TableRecord& table : tables) {
    masks.push_back(mask);
    if (mask != nullptr) mask += (table.view.num_rows + 7) / 8;
  }
  seam = places.take<char>(static_cast<int64_t>(device->seam_bytes(tiles + 1)));
  scratch_bytes = std::clamp(max_staging_bytes / 4, std::max(kLeastScratch, 4 * largest_record),
                             std::max(kMostScratch, 4 * largest_record));
  scratch = places.take<char>(scratch_bytes);
  for (int p = 0; p < kParts; ++p) {
    Part& part = parts[p];
    part.walk = p < kParts / 2;
    part.capacity = part.walk ? walk_bytes : share(max_staging_bytes, kTouchedShare);
    if (part.walk) {
      part.piece = places.take<cuda::PieceHead>(1);
      part.piece_records = places.take<int64_t>(n);
    } else {
      part.sealed = places.take<cuda::TouchedArea>(1);
    }
    part.records = places.take<char>(part.capacity);
  }
  return places.bytes();
}

DeviceStaging::DeviceStaging(cuda::Device* device, const std::vector<cuda::TableRecord>& tables,
                             int64_t max_staging_bytes, void* memory, std::shared_ptr<void> owner, cuda::Stream stream)
    : owner_(std::move(owner)), side_(device->make_stream()) {
  place(device, tables, max_staging_bytes, memory);
  std::vector<int64_t> first_tile = {0};
  for (const cuda::TableRecord& table : tables) {
    first_tile.push_back(first_tile.back() + (table.view.num_rows + tile_rows - 1) / tile_rows);
  }
  device->upload(first_tile_, first_tile.data(), first_tile.size() * sizeof(int64_t), stream);
  const cuda::TouchedArea closed;
  device->upload(args.area, &closed, sizeof closed, stream);
  const auto place_pinned = [&](void* pinned) {
    Places places(pinned);
    for (Part& part : parts) {
      part.piece_copied = places.take<cuda::PieceHead>(1);
      part.piece_records_copied = places.take<int64_t>(static_cast<int64_t>(tables.size()));
      part.sealed_copied = places.take<cuda::TouchedArea>(1);
      part.copied = places.take<char>(part.capacity);
    }
    begun_after_copied = places.take<int64_t>(1);
    expected_copied = places.take<int64_t>(static_cast<int64_t>(tables.size()));
    return places.bytes();
  };
  pinned_ = device->pinned(static_cast<size_t>(place_pinned(nullptr)));
  place_pinned(pinned_.get());
  for (Part& part : parts) {
    part.begun = device->make_timer();
    part.filled = device->make_timer();
    part.copied_at = device->make_event();
  }
}

}  // namespace cpr
