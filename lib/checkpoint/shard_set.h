#pragma once

// All shard files of one checkpoint, opened as they are needed: the one way in which tensors are read from
// them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shard_file.h"
#include "util/column_range.h"

namespace fsdp::checkpoint {

/// A piece of a tensor in one shard file, and where its elements belong: one block of elements, or several of
/// the same size at equal distances.
struct ShardRead {
  size_t file = 0;                    ///< index into Manifest::files
  const std::string* name = nullptr;  ///< of the tensor; lives in the manifest
  const TensorEntry* entry = nullptr;
  DatasetBlocks blocks{};
  void* out = nullptr;
};

/// Not thread-safe. The manifest must outlive it.
class ShardSet {
 public:
  ShardSet(std::filesystem::path folder, const Manifest& manifest);

  /// Compares a file's size and hash with the manifest's; DamageError that names it when they differ,
  /// kCheckpoint when it is missing. Later calls for the same file cost nothing.
  /// `on_bytes` is told how many bytes were hashed since its last call.
  void verify(size_t file, const std::function<void(int64_t)>& on_bytes = {});

  /// Proves that a file, once verified, holds what the manifest says of a tensor.
  void check(size_t file, const std::string& name, const TensorEntry& entry);

  /// The reads that bring a part of a tensor to `out`, contiguous as [rows, end - begin].
  std::vector<ShardRead> plan(const std::string& name, const util::ColumnRange& part, void* out) const;

  /// Verifies and opens the file when that has not been done, and reads.
  void read(const ShardRead& read);

 private:
  struct OpenFile {
    size_t file;
    ShardFile shard;
  };
  const ShardFile& open(size_t file);

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::vector<bool> verified_;
  std::list<OpenFile> open_;  ///< the most recently used first; bounded
};

}  // namespace fsdp::checkpoint
