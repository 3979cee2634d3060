#include "base/util/hash.h"

#include <xxhash.h>

#include <array>

namespace fsdp::util {
namespace {

constexpr std::array<uint32_t, 256> crc32c_table() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kReversedPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

}  // namespace

uint64_t xxh3_64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc32c_table();
  uint32_t rest = ~uint32_t{0};
  for (const char byte : bytes) rest = (rest >> 8) ^ kTable[(rest ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~rest;
}

}  // namespace fsdp::util
