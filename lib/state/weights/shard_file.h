#pragma once

// One rank's file of a sharded checkpoint: an HDF5 file with a contiguous 1-D data set per tensor
// (FORMAT.md). Threads may use different objects at the same time, but not the same object.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

struct DatasetSpec {
  std::string name;  ///< "model/embed.weight", where each slash makes a group
  c10::ScalarType dtype;
  int64_t numel;
};

/// Name of the data set with the shard's description of itself (describe_file()), as bytes.
inline constexpr const char* kDescriptionName = "description";
DatasetSpec description_spec(const std::string& description);

/// Blocks of equal size at equal distances, in a data set and in memory.
struct DatasetBlocks {
  int64_t offset = 0;  ///< first element of the first block in the data set
  int64_t count = 0;   ///< number of elements of a block
  int64_t blocks = 1;
  int64_t stride = 0;  ///< distance between blocks in the data set, if there are several; at least `count`
  int64_t out_stride = 0;  ///< distance between blocks in memory, if there are several; at least `count`
};

/// Writes a shard file piece by piece, in any order. Throws Error(kIo) that names the tensor. The caller
/// gives the file a temporary name, syncs it, and removes it after an error.
class ShardFileWriter {
 public:
  /// Creates the file with its data sets. Requires: no data set has 0 elements.
  ShardFileWriter(std::filesystem::path path, std::vector<DatasetSpec> datasets);
  ~ShardFileWriter();

  /// Writes elements [offset, offset + count) of a data set.
  void write(const std::string& name, int64_t offset, int64_t count, const void* data);

  /// Closes the file and reads its structure back. Requires: every element has been written.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a shard file. Refuses everything that ShardFileWriter does not write (links to elsewhere, filters,
/// virtual or external storage, another type or size): throws Error(kCheckpoint) that names the file and the
/// tensor. HDF5 is not robust against hostile bytes: compare the file's digest with the manifest's before
/// opening it.
class ShardFile {
 public:
  explicit ShardFile(const std::filesystem::path& path);
  ShardFile(ShardFile&&) noexcept;
  ~ShardFile();

  /// Throws unless the data set exists as specified and all its bytes are in the file.
  void check(const DatasetSpec& spec) const;

  /// Throws if the file's description of itself is not `expected`. Files older than version 4 of the format
  /// have no description.
  void check_description(const std::string& expected) const;

  /// Reads the blocks. The first block is copied to `out`.
  void read(const DatasetSpec& spec, const DatasetBlocks& blocks, void* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp::checkpoint
