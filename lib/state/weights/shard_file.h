#pragma once

// One rank's file of a sharded checkpoint: an HDF5 file with a contiguous 1-D data set per tensor
// (FORMAT.md). Different objects may be used by different threads; one object by one thread at a time.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

struct DatasetSpec {
  std::string name;  ///< "model/embed.weight": groups for the slashes
  c10::ScalarType dtype;
  int64_t numel;
};

/// The data set with what a shard says of itself (describe_file()), as bytes.
inline constexpr const char* kDescriptionName = "description";
DatasetSpec description_spec(const std::string& description);

/// Blocks of equal size at equal distances, in a data set and in memory.
struct DatasetBlocks {
  int64_t offset = 0;  ///< first element of the first block in the data set
  int64_t count = 0;   ///< elements of a block
  int64_t blocks = 1;
  int64_t stride = 0;      ///< if several: from block to block in the data set, at least `count`
  int64_t out_stride = 0;  ///< if several: from block to block in memory, at least `count`
};

/// Writes a shard file piece by piece, in any order. kIo that names the tensor that was being written. The
/// caller gives the file a temporary name, syncs it, and removes it after an error.
class ShardFileWriter {
 public:
  /// Creates the file with its data sets, none of which may have 0 elements.
  ShardFileWriter(std::filesystem::path path, std::vector<DatasetSpec> datasets);
  ~ShardFileWriter();

  /// Elements [offset, offset + count) of a data set.
  void write(const std::string& name, int64_t offset, int64_t count, const void* data);

  /// Closes the file and reads its structure back. Every element must have been written.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a shard file. Refuses everything that ShardFileWriter does not write (links to elsewhere, filters,
/// virtual or external storage, another type or size) with kCheckpoint that names the file and the tensor.
/// HDF5 is not robust against hostile bytes: compare the file's digest with the manifest's before opening it.
class ShardFile {
 public:
  explicit ShardFile(const std::filesystem::path& path);
  ShardFile(ShardFile&&) noexcept;
  ~ShardFile();

  /// Throws unless the data set is there as specified and all its bytes lie in the file.
  void check(const DatasetSpec& spec) const;

  /// Throws if the file says other things of itself; files before version 4 of the format say nothing.
  void check_description(const std::string& expected) const;

  /// Reads the blocks; the first one goes to `out`.
  void read(const DatasetSpec& spec, const DatasetBlocks& blocks, void* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp::checkpoint
