#pragma once

// The parts of a save that save.cpp and save_full.cpp share: a rank's slices in order, and the step's folder,
// which rank 0 creates, the ranks fill, and the manifest commits.

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "shard/engine/tensor_slice.h"
#include "state/checkpoint/save.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {

/// A tensor's slices on this rank.
struct RankTensor {
  const shard::TensorSlice* any = nullptr;        ///< for shape and dtype; never null
  std::vector<const shard::TensorSlice*> slices;  ///< ascending, without the empty ones
};

/// By name; the slices must outlive the result. Checks that they are contiguous in CPU memory.
std::map<std::string, RankTensor> group_by_tensor(const std::vector<shard::TensorSlice>& slices);

using TensorEntries = std::map<std::string, TensorEntry>;

/// The tensors, with this rank's ranges of them in file number `file`.
TensorEntries entries_of(const std::map<std::string, RankTensor>& tensors, size_t file);

/// {name: {shape, dtype, rows, ranges}}, to be sent to other ranks.
nlohmann::json described(const TensorEntries& tensors);

/// Adds what other ranks have described. kCheckpoint when it contradicts `tensors`.
void add_described(TensorEntries& tensors, const nlohmann::json& described);

/// What ranks say of the files that they have written, on its way to rank 0: {files: [[bytes, xxh3_64], ...], tensors},
/// or {error}.
std::string report_of(const FileEntry& file, TensorEntries tensors);

/// The reports of ranks `first` to `last` of `world` as one, in which their ranges are joined.
std::string combined_reports(const std::vector<std::string>& reports, int first, int last, int world);

/// The manifest's files and tensors from the report of all ranks; kCheckpoint for an error in it.
void add_report(Manifest& manifest, const std::string& report);

/// Creates the folders of a large world's shards in the step's folder.
void create_shard_folders(const std::filesystem::path& folder, int64_t world_size);

/// Creates the step's folder in the output folder. Removes what an unfinished save of the same run left there; renames
/// what another left, and a finished but damaged checkpoint; kCheckpoint for a complete one. Rank 0 only.
void create_step_folder(const SaveRequest& request, const std::filesystem::path& folder, int64_t world_size);

/// Calls `write` to fill a file under its temporary name (the argument), then hashes it, syncs it and renames
/// it. After an error nothing is left of it.
FileEntry write_named(const std::filesystem::path& path,
                      const std::function<void(const std::filesystem::path&)>& write);

/// kIo unless rank 0 sees a file as the rank that wrote it.
void require_visible(const std::filesystem::path& folder, const FileEntry& file);

/// Checks the manifest and writes it, which completes the checkpoint, then removes what `request.retention`
/// does not keep; failing to remove is not an error. Rank 0 only.
SavedCheckpoint commit(const SaveRequest& request, Manifest manifest, const std::filesystem::path& folder);

/// Runs one part of a save that has created its folder and rethrows its errors, after rank 0 has removed the unfinished
/// folder. Errors of
/// a lost peer leave the folder, since that rank may still be writing; the next run removes it.
void or_remove_folder(comm::Communicator& communicator, const std::filesystem::path& folder,
                      const std::function<void()>& part);

}  // namespace fsdp::checkpoint
