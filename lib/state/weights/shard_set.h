#pragma once

// All shard files of one checkpoint, opened when they are needed. Tensors are read from shard files only
// here.

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

/// Part of a tensor in one shard file, and the memory to which its elements are read.
struct ShardRead {
  size_t file = 0;                    ///< index into Manifest::files
  const std::string* name = nullptr;  ///< name of the tensor; owned by the manifest
  const TensorEntry* entry = nullptr;
  int64_t held = 0;  ///< number of elements of the tensor in the file
  DatasetBlocks blocks{};
  void* out = nullptr;
};

/// Reads parts of tensors from a checkpoint's shard files. The manifest must outlive the object. Not
/// thread-safe.
class ShardSet {
 public:
  ShardSet(std::filesystem::path folder, const Manifest& manifest);

  /// Compares a file's size and hash with the manifest's. Throws DamageError that names the file if they
  /// differ, Error(kCheckpoint) if it is missing. Later calls for the same file cost nothing. `on_bytes`: see
  /// digest_file().
  void verify(size_t file, const std::function<void(int64_t)>& on_bytes = {});

  /// Checks that a file's description of itself and its data sets agree with the manifest, after verifying
  /// the file. Calls note(check) for each check, and `note` runs it.
  void check(size_t file, const std::function<void(const std::function<void()>& check)>& note);

  /// The reads that copy a part of a tensor to `out`, which is contiguous: [height, length].
  std::vector<ShardRead> plan(const std::string& name, const util::Rectangle& part, void* out) const;

  /// Does one read, after verifying and opening the file if it is the first read from it.
  void read(const ShardRead& read);

 private:
  void verify_at(const std::filesystem::path& path, size_t file,
                 const std::function<void(int64_t)>& on_bytes = {});
  struct OpenFile {
    size_t file;
    ShardFile shard;
  };
  const ShardFile& open(size_t file);

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::vector<bool> verified_;
  std::list<OpenFile> open_;  ///< most recently used first, in bounded number
};

/// A sharded checkpoint as one source of tensors. A shard is hashed before the first read from it.
class ShardedSource final : public TensorSource {
 public:
  /// `folder` is a step's folder. Throws Error(kCheckpoint) if its manifest is missing or damaged.
  explicit ShardedSource(std::filesystem::path folder);

  const Manifest& manifest() const { return manifest_; }

  /// Compares the hashes of all shards with the manifest's. Throws Error(kCheckpoint) that names the first
  /// shard that differs.
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
