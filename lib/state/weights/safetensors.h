#pragma once

// Files of the safetensors format (https://huggingface.co/docs/safetensors): the length of a JSON header (8
// bytes), the header, and the tensors' bytes. A written file gets its name only when it is complete. A file
// that is read is not trusted: every limit is checked.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "base/util/raw_file.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Writes one file as a stream: construct, append() every tensor's bytes in the order of infos(), finish().
/// The final name appears in finish() only. A writer that is destroyed before finish() removes its file.
class SafetensorsWriter {
 public:
  /// Writes the header. The tensors are ordered so that each is aligned to its element size: larger elements
  /// first, then by name. Throws Error(kIo) if the file cannot be created.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> infos);
  ~SafetensorsWriter();

  const std::vector<TensorInfo>& infos() const { return infos_; }

  void append(const void* data, int64_t bytes);
  /// Appends a tensor of `source`, converted to the type of `info`, in slices of bounded memory.
  void append(const TensorInfo& info, const Weights& source, const std::string& stored_name,
              util::ByteCounter& counter);

  /// Syncs and renames the file, replacing a file of that name. Requires: all bytes have been appended.
  void finish();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::vector<TensorInfo> infos_;
  util::RawFile file_;
  int64_t missing_bytes_ = 0;
  bool finished_ = false;
};

/// Reads ranges of the tensors of one file. Memory is bounded by the size of the header. Not thread-safe.
class SafetensorsReader final : public TensorSource {
 public:
  /// Reads and checks the header: its length, its JSON, the types, and that the tensors fill the file without
  /// overlap or hole. Otherwise throws Error(kCheckpoint) that names the file and the tensor.
  explicit SafetensorsReader(const std::filesystem::path& path);

  struct SafetensorsEntry {
    std::vector<int64_t> shape;
    c10::ScalarType dtype = c10::ScalarType::Float;
    int64_t numel = 0;
    int64_t begin_bytes = 0;  ///< offset from the start of the file
  };

  const std::filesystem::path& path() const override { return file_.path(); }
  std::vector<TensorInfo> infos() const override;

  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Throws Error(kCheckpoint) if the file has no such tensor.
  const SafetensorsEntry& entry(const std::string& name) const;

  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override;

 private:
  util::RawFile file_;
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace fsdp::checkpoint
