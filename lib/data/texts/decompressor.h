#pragma once

// Decompression of gzip (zlib) and Zstandard (libzstd) data, piece by piece.

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Error in compressed data: "is damaged (invalid block type)". The message names no file.
class DecompressorError : public std::runtime_error {
 public:
  DecompressorError(const std::string& found, std::string remedy)
      : std::runtime_error(found), remedy_(std::move(remedy)) {}
  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

/// Decompresses consecutive members of gzip or frames of Zstandard. Takes at most 128 MiB of memory.
class Decompressor {
 public:
  virtual ~Decompressor() = default;

  struct Step {
    size_t read = 0, written = 0;
  };
  /// Decompresses some of `from` into the `room` bytes at `to`. Throws DecompressorError.
  virtual Step step(std::string_view from, char* to, size_t room) = 0;

  /// Whether the data may end here, after a whole member or frame.
  bool at_end() const { return at_end_; }

 protected:
  bool at_end_ = true;
};

/// Returns the decompressor of a file that begins with `head`; null if it is not gzip's or zstd's.
std::unique_ptr<Decompressor> make_decompressor(std::string_view head);

}  // namespace fsdp::data
