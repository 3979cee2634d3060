#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

namespace fsdp::testing {

/// Token i of the files that tests train on: a sequence with something to learn in it. The same formula
/// stands in tests/parity/torch_reference.py.
inline uint16_t test_token(int64_t i, int64_t vocab_size) {
  return static_cast<uint16_t>((3 * (i % 7) + i * i / 3 % 3 + i / 50 % 2) % vocab_size);
}

/// Writes `count` such tokens as a flat little-endian uint16 file.
inline void write_token_file(const std::filesystem::path& path, int64_t count, int64_t vocab_size) {
  std::vector<uint16_t> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = test_token(i, vocab_size);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
}

}  // namespace fsdp::testing
