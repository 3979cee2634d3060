#pragma once

// Reads a GGUF file by ranges. The file is not trusted: memory is bounded by its header, and counts, lengths,
// types and places are checked before they are used.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/gguf/format.h"
#include "base/util/raw_file.h"

namespace fsdp::gguf {

/// Whether the file begins as GGUF files do; false for what cannot be read.
bool is_gguf(const std::filesystem::path& path);

/// Not thread-safe.
class Reader {
 public:
  /// Versions 2 and 3. kCheckpoint that names the file and the tensor or key: for a damaged file, one of
  /// big-endian numbers, and tensors of types other than TensorType.
  explicit Reader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, Value>& metadata() const { return metadata_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  /// The value of a key; null when it is missing or of another type.
  template <typename Type>
  const Type* find(const std::string& key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : std::get_if<Type>(&found->second);
  }

  /// Bytes [begin, begin + bytes) of a tensor.
  void read(const Tensor& tensor, int64_t begin, int64_t bytes, void* out) const;

 private:
  util::RawFile file_;
  std::map<std::string, Value> metadata_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace fsdp::gguf
