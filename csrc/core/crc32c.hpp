// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720 appendix B.4). Any thread; nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cpr {

// CRC of the bytes whose CRC so far is `crc` (0 for none) followed by `data`.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0) noexcept;

// CRC of A followed by B, given the CRC of each and the length of B in bytes.
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept;

// Which instructions crc32c uses: the processor's best, none with `portable`, none of AVX-512 unless `wide`. Call
// before other threads do.
void crc32c_choose(bool portable, bool wide) noexcept;

}  // namespace cpr
