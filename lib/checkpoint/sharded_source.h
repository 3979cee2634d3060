#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shard_set.h"
#include "checkpoint/tensor_source.h"
#include "util/progress_bar.h"

namespace fsdp::checkpoint {

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
  mutable ShardSet shards_;  ///< opens files as they are needed
};

}  // namespace fsdp::checkpoint
