#pragma once

// The parts of a save that save.cpp and save_full.cpp share: grouping a rank's slices, and the step's folder,
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
  const shard::TensorSlice* any = nullptr;        ///< a slice with the shape and dtype; never null
  std::vector<const shard::TensorSlice*> slices;  ///< ascending, without empty slices
};

/// Groups slices by the names of their tensors. Checks that they are contiguous in CPU memory. The slices
/// must outlive the result.
std::map<std::string, RankTensor> group_by_tensor(const std::vector<shard::TensorSlice>& slices);

/// Calls visit(first, some, data) for pieces of `count` numbers of the slice from `begin` on: all at once, or
/// decoded piece by piece if they are in 8 bits.
void for_each_piece(const shard::TensorSlice& slice, int64_t begin, int64_t count,
                    const std::function<void(int64_t first, int64_t some, const void* data)>& visit);

using TensorEntries = std::map<std::string, TensorEntry>;

/// The tensors as entries of a manifest, with this rank's ranges in file number `file`.
TensorEntries entries_of(const std::map<std::string, RankTensor>& tensors, size_t file);

/// JSON to send to other ranks: {name: {shape, dtype, rows, ranges}}.
nlohmann::json described(const TensorEntries& tensors);

/// Adds tensors that other ranks have described. Throws Error(kCheckpoint) if a description contradicts
/// `tensors`.
void add_described(TensorEntries& tensors, const nlohmann::json& described);

/// The report of a rank on the file that it has written, to be sent to rank 0: {files: [[bytes, xxh3_64],
/// ...], tensors}, or {error}.
std::string report_of(const FileEntry& file, TensorEntries tensors);

/// Combines the reports of ranks `first` to `last` of `world` into one, and joins their ranges.
std::string combined_reports(const std::vector<std::string>& reports, int first, int last, int world);

/// Sets the manifest's files and tensors from the combined report of all ranks. Throws Error(kCheckpoint) for
/// an error in the report.
void add_report(Manifest& manifest, const std::string& report);

/// Creates the folders of a large world's shards in the step's folder.
void create_shard_folders(const std::filesystem::path& folder, int64_t world_size);

/// Creates the step's folder in the output folder. Removes leftovers of an unfinished save of the same run.
/// Renames leftovers of other runs, and a finished but damaged checkpoint. Throws Error(kCheckpoint) if a
/// complete checkpoint exists. Rank 0 only.
void create_step_folder(const SaveRequest& request, const std::filesystem::path& folder, int64_t world_size);

/// Calls write(temporary name) to fill a file, then hashes, syncs and renames it. Removes the file after an
/// error.
FileEntry write_named(const std::filesystem::path& path,
                      const std::function<void(const std::filesystem::path&)>& write);

/// Throws Error(kIo) unless rank 0 sees a file with the size that its writer reported.
void require_visible(const std::filesystem::path& folder, const FileEntry& file);

/// Checks the manifest and writes it, which completes the checkpoint. Then removes checkpoints that
/// `request.retention` does not keep; a failure to remove them is not an error. Rank 0 only.
SavedCheckpoint commit(const SaveRequest& request, Manifest manifest, const std::filesystem::path& folder);

/// Runs one part of a save that has created its folder. Rethrows the part's errors after rank 0 has removed
/// the unfinished folder. Errors of a lost peer leave the folder, because that peer may still be writing. The
/// next run removes it.
void or_remove_folder(comm::Communicator& communicator, const std::filesystem::path& folder,
                      const std::function<void()>& part);

}  // namespace fsdp::checkpoint
