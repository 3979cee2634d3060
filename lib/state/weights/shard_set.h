#pragma once

// All shard files of one checkpoint, opened as they are needed: the only way in which tensors are read from
// them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "base/util/rectangle.h"
#include "state/manifest/manifest.h"
#include "state/weights/shard_file.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Part of a tensor in one shard file, and where its elements go.
struct ShardRead {
  size_t file = 0;                    ///< index into Manifest::files
  const std::string* name = nullptr;  ///< of the tensor; owned by the manifest
  const TensorEntry* entry = nullptr;
  int64_t held = 0;  ///< elements of the tensor in the file
  DatasetBlocks blocks{};
  void* out = nullptr;
};

/// Not thread-safe. The manifest must outlive it.
class ShardSet {
 public:
  ShardSet(std::filesystem::path folder, const Manifest& manifest);

  /// Compares a file's size and hash with the manifest's; DamageError that names it when they differ,
  /// kCheckpoint when it is missing. Later calls for the same file cost nothing. `on_bytes`: as
  /// digest_file().
  void verify(size_t file, const std::function<void(int64_t)>& on_bytes = {});

  /// Throws unless a file, which is verified if it was not, holds what the manifest says, of itself and in data sets;
  /// `note` gets the check of each, and runs it.
  void check(size_t file, const std::function<void(const std::function<void()>& check)>& note);

  /// The reads that bring a part of a tensor to `out`, contiguous as [height, length].
  std::vector<ShardRead> plan(const std::string& name, const util::Rectangle& part, void* out) const;

  /// Reads, after verifying and opening the file if that has not been done.
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

/// A sharded checkpoint as one source. A shard is hashed before the first read from it.
class ShardedSource final : public TensorSource {
 public:
  /// `folder` is a step's folder; kCheckpoint when its manifest is missing or damaged.
  explicit ShardedSource(std::filesystem::path folder);

  const Manifest& manifest() const { return manifest_; }

  /// Compares the hashes of all shards with the manifest's; kCheckpoint that names the first that differs.
  void verify_all(const util::ByteProgress& progress) const;

  const std::filesystem::path& path() const override { return folder_; }
  std::vector<TensorInfo> infos() const override;
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override;

 private:
  std::filesystem::path folder_;
  Manifest manifest_;
  mutable ShardSet shards_;
};

}  // namespace fsdp::checkpoint
