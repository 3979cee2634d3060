#pragma once

// The bytes of an input file by ranges. Texts, tables and shards are opened here and nowhere else, so that
// files that are not on this machine can be added in one place.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fsdp::data {

/// An open file. Thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual int64_t size_bytes() const = 0;
  /// Copies the bytes [offset, offset + bytes), fewer only if the file has become shorter. Throws
  /// Error(kData). Requires: the range is within size_bytes().
  virtual size_t read_at(int64_t offset, size_t bytes, char* to) const = 0;
  /// A text that differs after the file has been written again: size and time of modification.
  virtual std::string version() const = 0;
};

/// Opens a file, or an object of a store, that is not empty. Throws Error(kData) for all failures
/// (refuse_text()).
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

/// Throws Error(kData) with the message "the text PATH REASON".
[[noreturn]] void refuse_text(const std::string& path, const std::string& reason);

/// Hash of the size and of samples of the content: the beginning, the middle and the end.
uint64_t sampled_hash(const ByteSource& source);

}  // namespace fsdp::data
