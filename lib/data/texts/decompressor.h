#pragma once

// What is compressed by gzip (zlib) or Zstandard (libzstd), decompressed piece by piece.

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Data that cannot be decompressed: "is damaged (invalid block type)". Names no file.
class DecompressorError : public std::runtime_error {
 public:
  DecompressorError(const std::string& found, std::string remedy)
      : std::runtime_error(found), remedy_(std::move(remedy)) {}
  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

/// Takes any number of gzip's members or Zstandard's frames, one after another. Memory: 128 MiB and less.
class Decompressor {
 public:
  virtual ~Decompressor() = default;

  struct Step {
    size_t read = 0, written = 0;
  };
  /// Decompresses some of `from` into the `room` bytes at `to`. Throws DecompressorError.
  virtual Step step(std::string_view from, char* to, size_t room) = 0;

  /// Whether the data may end here, behind a whole member or frame.
  bool at_end() const { return at_end_; }

 protected:
  bool at_end_ = true;
};

/// The one for a file that begins so; null when it is not compressed by gzip or zstd.
std::unique_ptr<Decompressor> make_decompressor(std::string_view head);

}  // namespace fsdp::data
