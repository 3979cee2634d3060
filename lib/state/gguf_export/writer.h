#pragma once

// Writes a GGUF file in a stream, so that memory is bounded by what the caller passes at once.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/gguf/format.h"
#include "base/util/raw_file.h"

namespace fsdp::gguf {

/// Construct, append() every tensor's bytes in the order of tensors(), finish(). Nothing appears under the
/// final name before finish(); a writer destroyed without it removes what it wrote.
class Writer {
 public:
  /// Writes everything but the tensors' bytes. Their order is kept. kIo when the file cannot be created.
  Writer(const std::filesystem::path& path, const Metadata& metadata, std::vector<Tensor> tensors);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  const std::vector<Tensor>& tensors() const { return tensors_; }

  /// Bytes of one tensor; pads after its last.
  void append(const void* data, int64_t bytes);

  /// Syncs and renames, replacing a file of that name; an assertion unless exactly all bytes were appended.
  void finish();

 private:
  void pad();

  std::filesystem::path path_, temporary_;
  std::vector<Tensor> tensors_;
  util::RawFile file_;
  size_t current_ = 0;         ///< the tensor that is being appended
  int64_t missing_bytes_ = 0;  ///< bytes of the tensor that are not written yet
  int64_t written_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace fsdp::gguf
