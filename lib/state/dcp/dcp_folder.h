#pragma once

// A checkpoint of torch.distributed.checkpoint (DCP): `.metadata`, a pickle that says where in the other files
// (`__0_0.distcp`) the parts of each tensor are, each as torch.save() writes it. Read as data (state/dcp/pickle.h):
// nothing of it is run.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/dcp/torch_object.h"
#include "state/hugging_face/described_model.h"
#include "state/manifest/manifest.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Something that a file of the folder holds, as torch.save() writes it: a part of a tensor, or another object.
struct DcpItem {
  std::string file;
  FilePart place;
};

/// What .metadata says, under the keys of the saved state dict.
struct DcpMetadata {
  /// The tensors. Their `files` are the items, of which a part of a tensor is one each: FileEntry::name is the name
  /// of the item's file.
  Manifest manifest;
  std::vector<DcpItem> items;             ///< by RangeEntry::file
  std::map<std::string, DcpItem> values;  ///< objects that are no tensors
};

/// Checks that the parts of each tensor cover it without overlap. kCheckpoint that starts with `where` for anything
/// that PyTorch does not write, and for what it may write and this program does not read: extensions that transform
/// the bytes, and parts that are no rectangles of rows and columns.
DcpMetadata parse_dcp_metadata(std::string pickle, const std::string& where);

/// The checkpoint as one source. Of the parts of tensors, the ranges that are asked for are read, after the checksum
/// of a part has been compared at its first use. Not thread-safe.
class DcpFolder final : public TensorSource {
 public:
  explicit DcpFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const override { return folder_; }
  std::vector<TensorInfo> infos() const override;
  void read(const std::string& key, int64_t begin, int64_t end, void* out) const override;

  bool has_tensor(const std::string& key) const { return metadata_.manifest.tensors.contains(key); }
  /// The keys of the objects that are no tensors, sorted.
  std::vector<std::string> value_keys() const;
  /// json_of() the object, or the number in a tensor of one element; null where there is no such key.
  nlohmann::json value(const std::string& key) const;

  /// Compares the checksums of all parts of tensors; kCheckpoint that names the first that differs.
  void verify_all(const util::ByteProgress& progress) const;

 private:
  const RawFile& open(const std::string& file) const;
  /// Byte of the first element of an item in its file.
  int64_t begin_of(size_t item, const std::string& key, const TensorEntry& entry, int64_t numel) const;

  std::filesystem::path folder_;
  DcpMetadata metadata_;
  mutable std::map<std::string, RawFile> open_;
  mutable std::vector<int64_t> begins_;  ///< -1: not known yet
};

}  // namespace fsdp::checkpoint
