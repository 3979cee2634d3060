#pragma once

// A checkpoint of torch.distributed.checkpoint (DCP). Its file `.metadata` is a pickle with the places of
// each tensor's parts in the other files (`__0_0.distcp`), where each part has torch.save()'s format. Pickles
// are read as data (state/dcp/pickle.h) and never run.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/dcp/torch_object.h"
#include "state/description/described_model.h"
#include "state/manifest/manifest.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// A part of a tensor, or another object, that a file of the folder holds in torch.save()'s format.
struct DcpItem {
  std::string file;
  FilePart place;
};

/// The content of .metadata, under the keys of the saved state dict.
struct DcpMetadata {
  /// The tensors. Each entry of its `files` is an item, that is, one part of a tensor. FileEntry::name is the
  /// name of the item's file.
  Manifest manifest;
  std::vector<DcpItem> items;             ///< indexed by RangeEntry::file
  std::map<std::string, DcpItem> values;  ///< objects that are not tensors
};

/// Parses .metadata and checks that the parts of each tensor cover it without overlap. Throws
/// Error(kCheckpoint) that begins with `where` for anything that PyTorch does not write, and for what this
/// program cannot read: extensions that transform the bytes, and parts that are not rectangles of rows and
/// columns.
DcpMetadata parse_dcp_metadata(std::string pickle, const std::string& where);

/// The checkpoint as one source of tensors. Reads only the requested ranges. Compares the checksum of a part
/// at its first use. Not thread-safe.
class DcpFolder final : public TensorSource {
 public:
  explicit DcpFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const override { return folder_; }
  std::vector<TensorInfo> infos() const override;
  void read(const std::string& key, int64_t begin, int64_t end, void* out) const override;

  bool has_tensor(const std::string& key) const { return metadata_.manifest.tensors.contains(key); }
  /// The keys of the objects that are not tensors, sorted.
  std::vector<std::string> value_keys() const;
  /// The object as JSON (json_of()), or the number in a tensor of one element. Null if there is no such key.
  nlohmann::json value(const std::string& key) const;

  /// Compares the checksums of all parts of tensors. Throws Error(kCheckpoint) that names the first part that
  /// differs.
  void verify_all(const util::ByteProgress& progress) const;

 private:
  const util::RawFile& open(const std::string& file) const;
  /// Offset in bytes of an item's first element in its file.
  int64_t begin_of(size_t item, const std::string& key, const TensorEntry& entry, int64_t numel) const;

  std::filesystem::path folder_;
  DcpMetadata metadata_;
  mutable std::map<std::string, util::RawFile> open_;
  mutable std::vector<int64_t> begins_;  ///< -1: not known yet
};

}  // namespace fsdp::checkpoint
