#include "state/checkpoint/save_parts.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/shape.h"
#include "state/manifest/digest.h"
#include "state/manifest/run_identity.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

std::map<std::string, RankTensor> group_by_tensor(const std::vector<shard::TensorSlice>& slices) {
  std::map<std::string, RankTensor> tensors;
  for (const shard::TensorSlice& slice : slices) {
    FSDP_CHECK(is_tensor_name(slice.name), "\"", slice.name, "\"");
    FSDP_CHECK(slice.data.defined() && slice.data.device().is_cpu() && slice.data.is_contiguous(),
               slice.name);
    FSDP_CHECK(slice.data.dim() == 1 && slice.data.numel() == slice.numel(), slice.name);
    int64_t numel = util::checked_numel(slice.shape, static_cast<int64_t>(c10::elementSize(slice.dtype())));
    FSDP_CHECK(slice.range.fits(numel), slice.name);
    RankTensor& tensor = tensors[slice.name];
    if (!tensor.any) tensor.any = &slice;
    FSDP_CHECK(tensor.any->shape == slice.shape && tensor.any->range.rows == slice.range.rows &&
                   tensor.any->dtype() == slice.dtype(),
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

void for_each_piece(const shard::TensorSlice& slice, int64_t begin, int64_t count,
                    const std::function<void(int64_t, int64_t, const void*)>& visit) {
  if (!slice.coded) {
    const auto* data = static_cast<const char*>(slice.data.const_data_ptr());
    return visit(begin, count, data + begin * static_cast<int64_t>(slice.data.element_size()));
  }
  constexpr int64_t kAtOnce = int64_t{1} << 18;
  const at::Tensor numbers = at::empty({std::min(count, kAtOnce)}, at::kFloat);
  for (const int64_t end = begin + count; begin < end; begin += kAtOnce) {
    const int64_t some = std::min(kAtOnce, end - begin);
    kernels::decode(kernels::narrow(*slice.coded, begin, some), numbers.narrow(0, 0, some));
    visit(begin, some, numbers.const_data_ptr());
  }
}

TensorEntries entries_of(const std::map<std::string, RankTensor>& tensors, size_t file) {
  TensorEntries entries;
  for (const auto& [name, tensor] : tensors) {
    TensorEntry& entry = entries[name];
    entry.shape = tensor.any->shape;
    entry.dtype = tensor.any->dtype();
    entry.rows = tensor.any->range.rows;
    for (const shard::TensorSlice* slice : tensor.slices)
      entry.ranges.push_back({.part = slice->range, .file = file});
  }
  return entries;
}

json described(const TensorEntries& tensors) {
  json all = json::object();
  for (const auto& [name, entry] : tensors) {
    json ranges = json::array();
    for (const RangeEntry& range : entry.ranges) {
      const util::Rectangle& part = range.part;
      json repeats = json::array();
      for (const Repeat& repeat : range.repeats) {
        repeats.push_back({repeat.count, repeat.files, repeat.columns, repeat.rows});
      }
      ranges.push_back({range.file, part.begin, part.end, part.row_begin, part.row_end, std::move(repeats)});
    }
    all[name] = {{"shape", entry.shape},
                 {"dtype", util::dtype_name(entry.dtype)},
                 {"rows", entry.rows},
                 {"ranges", std::move(ranges)}};
  }
  return all;
}

void add_described(TensorEntries& tensors, const json& described) {
  for (const auto& [name, value] : described.items()) {
    TensorEntry given{.shape = value["shape"].get<std::vector<int64_t>>(),
                      .dtype = util::dtype_from_name(value["dtype"].get<std::string>()),
                      .rows = value["rows"].get<int64_t>()};
    TensorEntry& entry = tensors.try_emplace(name, given).first->second;
    for (const json& range : value["ranges"]) {
      RangeEntry& added = entry.ranges.emplace_back(
          RangeEntry{.part = {range[1].get<int64_t>(), range[2].get<int64_t>(), given.rows,
                              range[3].get<int64_t>(), range[4].get<int64_t>()},
                     .file = range[0].get<size_t>()});
      for (const json& repeat : range[5]) {
        added.repeats.push_back({repeat[0].get<int64_t>(), repeat[1].get<int64_t>(), repeat[2].get<int64_t>(),
                                 repeat[3].get<int64_t>()});
      }
    }
    if (entry.shape == given.shape && entry.dtype == given.dtype && entry.rows == given.rows) continue;
    const auto text_of = [](const TensorEntry& of) {
      return concat(util::dtype_name(of.dtype), " ", util::shape_text(of.shape), " in ", of.rows, " rows");
    };
    fail(ErrorKind::kCheckpoint, "the ranks disagree about the tensor ", name, ": ",
         value["ranges"].empty() ? "one" : concat("rank ", entry.ranges.back().file), " has ", text_of(given),
         ", others have ", text_of(entry));
  }
}

std::string report_of(const FileEntry& file, TensorEntries tensors) {
  return json{{"files", {{file.bytes, file.xxh3_64}}}, {"tensors", described(tensors)}}.dump();
}

std::string combined_reports(const std::vector<std::string>& reports, int first, int last, int world) {
  try {
    json files = json::array();
    TensorEntries tensors;
    for (const std::string& text : reports) {
      json report = json::parse(text);
      if (report.contains("error")) return text;
      for (json& file : report["files"]) files.push_back(std::move(file));
      add_described(tensors, report["tensors"]);
    }
    const std::pair<int64_t, int64_t> edges(first, last);
    const bool all = last - first + 1 == world;
    for (auto& [name, entry] : tensors)
      entry.ranges = joined(std::move(entry.ranges), all ? nullptr : &edges);
    return json{{"files", std::move(files)}, {"tensors", described(tensors)}}.dump();
  } catch (const std::exception& error) {
    return json{{"error", error.what()}}.dump(-1, ' ', false, json::error_handler_t::replace);
  }
}

void add_report(Manifest& manifest, const std::string& report) {
  const json all = json::parse(report);
  if (all.contains("error")) fail(ErrorKind::kCheckpoint, all["error"].get<std::string>());
  for (const json& file : all["files"]) {
    const auto rank = static_cast<int>(manifest.files.size());
    manifest.files.push_back({.name = shard_file_name(rank, manifest.world_size),
                              .bytes = file[0].get<int64_t>(),
                              .xxh3_64 = file[1].get<std::string>()});
  }
  add_described(manifest.tensors, all["tensors"]);
}

void create_shard_folders(const fs::path& folder, int64_t world_size) {
  fs::path made;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const fs::path parent = (folder / shard_file_name(static_cast<int>(rank), world_size)).parent_path();
    if (parent == folder || parent == made) continue;
    std::error_code error;
    fs::create_directory(made = parent, error);
    if (error) fail(ErrorKind::kIo, "cannot create the folder ", made.string(), ": ", error.message());
  }
  if (!made.empty()) util::sync_path(folder);
}

void create_step_folder(const SaveRequest& request, const fs::path& folder, int64_t world_size) {
  const fs::path& root = request.root;
  const std::string run = run_of(request.training);
  util::make_writable_folder(root);
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    if (incompleteness(folder).empty()) {
      fail(ErrorKind::kCheckpoint, folder.string(),
           " is already a complete checkpoint and is not overwritten; move it away, resume from "
           "it, or choose another run.output_dir");
    }
    if (fs::exists(folder / kManifestName, error)) {
      // The checkpoint was damaged after it was finished, or has a newer format: it stays for a person to
      // look at.
      const fs::path aside = set_aside(folder, kDamaged);
      util::log_warning(concat("renamed the damaged checkpoint ", folder.string(), " to ", aside.string()));
    } else if (run.empty() || run_that_fills(folder) != run) {
      const fs::path aside = set_aside(folder, kIncomplete);
      util::log_warning(concat("renamed ", folder.string(), ", which has no manifest, to ", aside.string()));
    } else {
      fs::remove_all(folder, error);
      if (error)
        fail(ErrorKind::kIo, "cannot remove the unfinished ", folder.string(), ": ", error.message());
      util::log_info(concat("removed the unfinished checkpoint ", folder.string()));
    }
  }
  fs::create_directory(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot create the folder ", folder.string(), ": ", error.message());
  try {
    mark_unfinished(folder, run);
    create_shard_folders(folder, world_size);
    util::sync_path(root);
  } catch (...) {
    fs::remove_all(folder, error);
    throw;
  }
}

FileEntry write_named(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  const fs::path temporary = temporary_name(path);
  try {
    write(temporary);
    util::start_writing_out(temporary);  // the disk writes while the hash is computed
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
  unmark_unfinished(folder);
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
    const bool all_here = error.kind() != ErrorKind::kPeerLost && error.kind() != ErrorKind::kTimeout;
    const bool on_every_rank = dynamic_cast<const comm::AgreedError*>(&error) != nullptr;
    const auto remove = [&] {
      std::error_code ignored;
      if (communicator.rank() != 0 || fs::exists(folder / kManifestName, ignored)) return;
      fs::remove_all(folder, ignored);
    };
    if (all_here && on_every_rank) comm::agree(communicator, "removal of an unfinished checkpoint", remove);
    if (all_here && !on_every_rank) remove();
    throw;
  }
}

}  // namespace fsdp::checkpoint
