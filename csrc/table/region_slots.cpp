// What a region holds of no row: two slots, written in turn.
#include <fcntl.h>
#include <cstring>

#include "core/errors.hpp"
#include "table/region_format.hpp"

namespace cpr {

// `capacity` 0: what the slots there say.
void Region::map_slots(size_t offset, size_t capacity) {
  if (capacity == 0) {
    const HugeBuffer head(kRegionPage, fd_, offset);
    capacity = static_cast<const Slots*>(head.data())->capacity;
    if (offset + kRegionPage + 2 * capacity > super()->end || capacity > super()->end) {
      throw CorruptionError(name_ + ": torn slots: " + std::to_string(capacity) + " bytes each");
    }
  }
  slots_ = HugeBuffer(kRegionPage + 2 * capacity, fd_, offset);
}

void Region::make_slots(size_t bytes) {
  Superblock& s = *super();
  const size_t capacity = region_rounded(bytes + bytes / 4, kRegionPage);
  const size_t offset = s.end;
  const size_t total = kRegionPage + 2 * capacity;
  grow(offset + region_rounded(total, kRegionAlign));
  const int error = posix_fallocate(fd_, static_cast<off_t>(offset), static_cast<off_t>(total));
  if (error != 0) {
    throw IoError(error, "no space for the dense state, two times " + std::to_string(capacity) + " bytes", name_);
  }
  s.end = offset + region_rounded(total, kRegionAlign);
  map_slots(offset, capacity);
  slots()->capacity = capacity;
}

char* Region::slot_data(int index) const {
  return static_cast<char*>(slots_.data()) + kRegionPage + static_cast<size_t>(index) * slots()->capacity;
}

uint32_t Region::checksum(int index) const {
  const Slot& slot = slots()->slot[index];
  const uint64_t numbers[] = {slot.ended, slot.meta_bytes, slot.num_tensors, slot.bytes};
  return crc32c(slot_data(index), slot.bytes, crc32c(numbers, sizeof numbers));
}

void Region::commit(const std::string& meta, const std::vector<Bytes>& tensors, bool ends_step) {
  size_t bytes = meta.size() + tensors.size() * sizeof(uint64_t);
  for (const Bytes& tensor : tensors) bytes += tensor.size;
  const bool fits = slots_.data() != nullptr && bytes <= slots()->capacity;
  const uint64_t number = sequence_ + 1;
  const size_t place = fits ? 0 : super()->end;
  if (!fits) make_slots(bytes);
  const int index = static_cast<int>(number % 2);
  Slot& slot = slots()->slot[index];
  __atomic_store_n(&slot.sequence, 0, __ATOMIC_SEQ_CST);
  slot.ended = ends_step ? number : ended_;
  slot.meta_bytes = meta.size();
  slot.num_tensors = tensors.size();
  slot.bytes = bytes;
  char* to = slot_data(index);
  std::memcpy(to, meta.data(), meta.size());
  to += meta.size();
  for (const Bytes& tensor : tensors) {
    const uint64_t size = tensor.size;
    std::memcpy(to, &size, sizeof size);
    to += sizeof size;
  }
  for (const Bytes& tensor : tensors) {
    if (tensor.size > 0) std::memcpy(to, tensor.data, tensor.size);
    to += tensor.size;
  }
  slot.crc = checksum(index);
  __atomic_store_n(&slot.sequence, number, __ATOMIC_RELEASE);
  if (!fits) __atomic_store_n(&super()->slots, place, __ATOMIC_RELEASE);
  sequence_ = number;
  ended_ = slot.ended;
  __atomic_store_n(&super()->ready, 1, __ATOMIC_RELEASE);
}

std::pair<std::string, std::vector<std::string>> Region::read() const {
  const int index = static_cast<int>(sequence_ % 2);
  const Slot& slot = slots()->slot[index];
  const bool fits = slot.sequence == sequence_ && sequence_ > 0 && slot.bytes <= slots()->capacity &&
                    slot.meta_bytes <= slot.bytes && slot.num_tensors <= (slot.bytes - slot.meta_bytes) / 8;
  if (!fits || slot.crc != checksum(index)) throw CorruptionError(name_ + ": the dense state is damaged");
  const char* at = slot_data(index);
  std::pair<std::string, std::vector<std::string>> found;
  found.first.assign(at, slot.meta_bytes);
  const char* sizes = at + slot.meta_bytes;
  at = sizes + slot.num_tensors * sizeof(uint64_t);
  for (uint64_t t = 0; t < slot.num_tensors; ++t) {
    uint64_t size = 0;
    std::memcpy(&size, sizes + t * sizeof size, sizeof size);
    found.second.emplace_back(at, size);
    at += size;
  }
  return found;
}

}  // namespace cpr
