#include "checkpoint/save_parts.h"

#include <algorithm>

#include "checkpoint/raw_file.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

std::map<std::string, RankTensor> group_by_tensor(const std::vector<shard::TensorSlice>& slices) {
  std::map<std::string, RankTensor> tensors;
  for (const shard::TensorSlice& slice : slices) {
    FSDP_CHECK(is_tensor_name(slice.name), "\"", slice.name, "\"");
    FSDP_CHECK(slice.data.defined() && slice.data.device().is_cpu() && slice.data.is_contiguous(),
               slice.name);
    FSDP_CHECK(slice.data.dim() == 1 && slice.data.numel() == slice.numel(), slice.name);
    int64_t numel = checked_numel(slice.shape, slice.data.element_size());
    FSDP_CHECK(slice.range.fits(numel), slice.name);
    RankTensor& tensor = tensors[slice.name];
    if (!tensor.any) tensor.any = &slice;
    FSDP_CHECK(tensor.any->shape == slice.shape && tensor.any->range.rows == slice.range.rows &&
                   tensor.any->data.scalar_type() == slice.data.scalar_type(),
               slice.name);
    if (slice.numel() > 0) tensor.slices.push_back(&slice);
  }
  for (auto& [name, tensor] : tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const shard::TensorSlice* a, const shard::TensorSlice* b) {
                return util::precedes(a->range, b->range);
              });
  }
  return tensors;
}

json describe(const std::map<std::string, RankTensor>& tensors) {
  json described = json::object();
  for (const auto& [name, tensor] : tensors) {
    json ranges = json::array();
    for (const shard::TensorSlice* slice : tensor.slices) {
      const util::Rectangle& range = slice->range;
      ranges.push_back({range.begin, range.end, range.row_begin, range.row_end});
    }
    described[name] = {{"shape", tensor.any->shape},
                       {"dtype", util::dtype_name(tensor.any->data.scalar_type())},
                       {"rows", tensor.any->range.rows},
                       {"ranges", std::move(ranges)}};
  }
  return described;
}

void add_described(Manifest& manifest, const json& described, size_t file, const std::string& who) {
  for (const auto& [name, value] : described.items()) {
    auto shape = value["shape"].get<std::vector<int64_t>>();
    auto dtype = util::dtype_from_name(value["dtype"].get<std::string>());
    auto rows = value["rows"].get<int64_t>();
    auto [at, is_new] =
        manifest.tensors.try_emplace(name, TensorEntry{.shape = shape, .dtype = dtype, .rows = rows});
    TensorEntry& entry = at->second;
    if (!is_new && (entry.shape != shape || entry.dtype != dtype || entry.rows != rows)) {
      util::fail(util::ErrorKind::kCheckpoint, "the ranks disagree about the tensor ", name, ": ", who,
                 " has ", util::dtype_name(dtype), " ", shape_text(shape), " in ", rows,
                 " rows, others have ", util::dtype_name(entry.dtype), " ", shape_text(entry.shape), " in ",
                 entry.rows);
    }
    for (const json& range : value["ranges"]) {
      entry.ranges.push_back({.part = {range[0].get<int64_t>(), range[1].get<int64_t>(), rows,
                                       range[2].get<int64_t>(), range[3].get<int64_t>()},
                              .file = file});
    }
  }
}

void create_step_folder(const fs::path& root, const fs::path& folder) {
  util::make_writable_folder(root);
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    if (incompleteness(folder).empty()) {
      fail(ErrorKind::kCheckpoint, folder.string(),
           " is already a complete checkpoint and is not overwritten; move it away, resume from "
           "it, or choose another run.output_dir");
    }
    if (fs::exists(folder / kManifestName, error)) {
      // Damaged since it was finished, or of a newer format: a person may want to look at it.
      const fs::path aside = set_aside(folder);
      util::log_warning(concat("renamed the damaged checkpoint ", folder.string(), " to ", aside.string()));
    } else {
      fs::remove_all(folder, error);
      if (error)
        fail(ErrorKind::kIo, "cannot remove the unfinished ", folder.string(), ": ", error.message());
      util::log_info(concat("removed the unfinished checkpoint ", folder.string()));
    }
  }
  fs::create_directory(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot create the folder ", folder.string(), ": ", error.message());
  util::sync_path(root);
}

FileEntry write_named(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  const fs::path temporary = temporary_name(path);
  try {
    write(temporary);
    util::start_writing_out(temporary);  // the disk works while the hash is computed
    FileDigest digest = digest_file(temporary);
    util::sync_path(temporary);
    util::rename_and_sync(temporary, path);
    return {.name = path.filename().string(), .bytes = digest.bytes, .xxh3_64 = digest.xxh3_64};
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

void require_visible(const fs::path& folder, const FileEntry& file) {
  std::error_code error;
  auto bytes = fs::file_size(folder / file.name, error);
  if (!error && static_cast<int64_t>(bytes) == file.bytes) return;
  fail(ErrorKind::kIo, "rank 0 does not see the file ", (folder / file.name).string(), " of ", file.bytes,
       " bytes that another rank wrote; run.output_dir must be on storage that all nodes share");
}

SavedCheckpoint commit(const SaveRequest& request, Manifest manifest, const fs::path& folder) {
  complete_manifest(manifest, folder.string());
  util::write_file_atomically(folder / kManifestName, manifest_text(manifest));
  SavedCheckpoint saved{.folder = folder};
  try {
    saved.removed = prune(request.root, request.retention);
  } catch (const util::Error& error) {
    saved.removal_failure = error.what();
  }
  return saved;
}

void or_remove_folder(comm::Communicator& communicator, const fs::path& folder,
                      const std::function<void()>& part) {
  try {
    part();
  } catch (const util::Error& error) {
    bool all_here = error.kind() != ErrorKind::kPeerLost && error.kind() != ErrorKind::kTimeout;
    std::error_code ignored;
    if (communicator.rank() == 0 && all_here && !fs::exists(folder / kManifestName, ignored)) {
      fs::remove_all(folder, ignored);
    }
    throw;
  }
}

}  // namespace fsdp::checkpoint
