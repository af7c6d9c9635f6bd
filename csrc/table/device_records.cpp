// What a part of the staging memory has brought to the host: records into chunks and into what abort merges back.
#include <algorithm>
#include <cstring>
#include <utility>

#include "table/device_memory.hpp"
#include "table/device_snapshot.hpp"

namespace cpr {

namespace {

using cuda::RecordHead;

template <typename T>
void make_room(std::vector<T>* items, size_t more) {
  const size_t size = items->size() + more;
  if (size > items->capacity()) items->reserve(std::max(size, 2 * items->capacity()));
}

RecordHead head_at(const char* at) {
  RecordHead head;
  std::memcpy(&head, at, sizeof head);
  return head;
}

// body(head, its address) for every record of a part: of a piece table by table, else in the order of the updates.
template <typename Body>
void for_each_head(const std::vector<cuda::TableRecord>& tables, const DeviceStaging::Part& part, const Body& body) {
  const char* at = part.copied;
  if (part.walk) {
    for (size_t t = 0; t < tables.size(); ++t) {
      const int64_t n = part.piece_records_copied[t];
      for (int64_t i = 0; i < n; ++i) body(head_at(at + i * static_cast<int64_t>(sizeof(RecordHead))), at);
      at += n * cuda::record_bytes(tables[t].view.format);
    }
    return;
  }
  while (at < part.copied + part.bytes) {
    const RecordHead head = head_at(at);
    body(head, at);
    at += cuda::record_bytes(tables[head.table].view.format);
  }
}

// `n` rows' weight and state, tightly packed, to those of a chunk from `slot` on.
void copy_rows(const RowFormat& format, const char* weights, const char* states, int64_t n, int64_t slot,
               const StagingView& to) {
  const auto bytes = static_cast<size_t>(weight_bytes(format));
  const auto columns = static_cast<size_t>(format.state_size);
  const auto first = static_cast<size_t>(slot);
  const auto count = static_cast<size_t>(n);
  if (count == 0) return;
  std::memcpy(to.weight + first * bytes, weights, count * bytes);
  if (columns > 0) std::memcpy(to.state + first * columns, states, count * columns * sizeof(float));
}

}  // namespace

// All of the part's, or nothing.
std::vector<int64_t> DeviceSnapshot::reserve_logs(const Part& part) {
  const std::vector<cuda::TableRecord>& tables = *tables_.records;
  std::vector<int64_t> counts(tables.size(), 0);
  if (part.walk) {
    std::copy_n(part.piece_records_copied, tables.size(), counts.begin());
  } else {
    for_each_head(tables, part, [&](const RecordHead& head, const char*) { ++counts[head.table]; });
  }
  for (size_t t = 0; t < logs_.size(); ++t) {
    const auto more = static_cast<size_t>(counts[t]);
    make_room(&logs_[t].rows, more);
    make_room(&logs_[t].words, more);
    if (tables[t].view.track_drift) make_room(&logs_[t].drifts, more);
  }
  return counts;
}

void DeviceSnapshot::log_part(const Part& part) {
  reserve_logs(part);
  for_each_head(*tables_.records, part, [&](const RecordHead& head, const char*) { log_record(head); });
}

// Keeps what abort needs, all of the part or nothing, and leaves the counts alone in the words: that is what readers
// see.
void DeviceSnapshot::read(const Part& part) {
  const std::vector<cuda::TableRecord>& tables = *tables_.records;
  const std::vector<int64_t> counts = reserve_logs(part);
  std::vector<StagingPtr> buffers(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    if (counts[t] == 0) continue;
    const auto never = [] { return false; };
    buffers[t] = pool_->acquire(static_cast<int>(t), tables[t].view.format, counts[t], INT64_MAX, -1.0, never, never);
  }
  std::vector<int64_t> sizes(tables.size(), 0);
  for_each_head(tables, part, [&](const RecordHead& head, const char* at) {
    const TableView& table = tables[head.table].view;
    const StagingView& to = buffers[head.table]->view();
    const int64_t slot = sizes[head.table]++;
    if (!part.walk) {
      const char* weight = at + sizeof head;
      copy_rows(table.format, weight, weight + cuda::rounded_to_16(weight_bytes(table.format)), 1, slot, to);
    } else if (slot == 0) {
      const cuda::PieceBlocks blocks = cuda::piece_blocks(table.format, 0, counts[head.table]);
      copy_rows(table.format, at + blocks.weights, at + blocks.states, counts[head.table], 0, to);
    }
    to.rows[slot] = head.row + table.row_offset;
    to.words[slot] = head.word & kCountMask;
    if (table.track_drift) to.drift[slot] = head.drift;
    log_record(head);
  });
  for (size_t t = 0; t < tables.size(); ++t) {
    if (buffers[t] == nullptr) continue;
    save_rows(t, buffers[t]->view(), counts[t]);
    buffers[t]->set_size(counts[t]);
    split_by_shard(std::move(buffers[t]), requests_[t].shards, tables[t].view.row_offset, pool_.get(), &chunks_);
  }
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  for (size_t t = 0; t < tables.size(); ++t) taken_[t] += counts[t];
}

void DeviceSnapshot::log_record(const cuda::RecordHead& head) {
  // A priority snapshot leaves the dirty bits in place.
  const bool clears = requests_[head.table].rule.clears_dirty;
  const uint32_t given = kCountMask | kListedBit | (clears ? kDirtyBit : 0);
  const bool drifts = (*tables_.records)[head.table].view.track_drift;
  const bool saved = (*tables_.saved)[head.table].data() != nullptr;
  if (!saved && (head.word & given) == 0 && !(drifts && head.drift != 0.0F)) return;
  Log& log = logs_[head.table];
  log.rows.push_back(head.row);
  log.words.push_back(head.word & given);
  if (drifts) log.drifts.push_back(head.drift);
}

// Through the scratch memory of row operations, in order of the stream.
void DeviceSnapshot::merge_logs() {
  const DeviceStaging& staging = *tables_.staging;
  const int64_t most = staging.scratch_bytes / 16 - 4;
  for (size_t t = 0; t < logs_.size(); ++t) {
    const Log& log = logs_[t];
    const auto n = static_cast<int64_t>(log.rows.size());
    for (int64_t begin = 0; begin < n; begin += most) {
      cuda::RowArgs args;
      args.step = cuda::RowStep::kMerge;
      args.table = tables_.on_device + t;
      args.n = std::min(most, n - begin);
      Places places(staging.scratch);
      auto* rows = places.take<int64_t>(args.n);
      args.words = places.take<uint32_t>(args.n);
      const auto size = static_cast<size_t>(args.n);
      tables_.device->upload(rows, log.rows.data() + begin, size * sizeof(int64_t), stream_);
      tables_.device->upload(args.words, log.words.data() + begin, size * sizeof(uint32_t), stream_);
      if (!log.drifts.empty()) {
        args.drifts = places.take<float>(args.n);
        tables_.device->upload(args.drifts, log.drifts.data() + begin, size * sizeof(float), stream_);
      }
      args.rows = rows;
      tables_.device->rows(args, args.n, stream_);
    }
  }
}

}  // namespace cpr
