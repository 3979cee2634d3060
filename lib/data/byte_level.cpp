#include "data/byte_level.h"

#include <array>
#include <cstdint>

#include "data/utf8.h"

namespace fsdp::data {
namespace {

struct Tables {
  std::array<std::string, 256> symbols;
  std::array<int, 512> bytes;

  Tables() {
    bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      uint32_t code_point = printable ? byte : next++;
      append_utf8(symbols[byte], code_point);
      bytes[code_point] = static_cast<int>(byte);
    }
  }
};

const Tables& tables() {
  static const Tables tables;
  return tables;
}

}  // namespace

const std::string& byte_symbol(unsigned char byte) { return tables().symbols[byte]; }

std::optional<std::string> symbols_to_bytes(std::string_view token) {
  std::string bytes;
  if (valid_utf8_prefix(token) != token.size()) return std::nullopt;
  while (!token.empty()) {
    CodePoint symbol = first_code_point(token);
    if (symbol.value >= tables().bytes.size() || tables().bytes[symbol.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(tables().bytes[symbol.value]));
    token.remove_prefix(symbol.bytes);
  }
  return bytes;
}

}  // namespace fsdp::data
