#pragma once

// Event files for TensorBoard, without its libraries.
//
// A file is a sequence of TFRecords: the length (8 bytes, little-endian), a masked CRC-32C of those 8 bytes,
// the data, a masked CRC-32C of the data. The data are protocol buffers of type Event, of which these fields
// are used (tensorflow/core/util/event.proto and framework/summary.proto):
//
//   Event    1 wall_time double   2 step int64   3 file_version string   5 summary   7 session_log
//   Summary  1 value, repeated: { 1 tag string   2 simple_value float }
//   SessionLog  1 status enum: START = 1

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/train/record_file.h"

namespace fsdp::train {

using Scalars = std::vector<std::pair<std::string, double>>;  ///< tags and values

/// Not thread-safe.
class TensorBoardFile {
 public:
  /// Creates the folder and a file in it. A run that starts anew (resumed_step 0) puts an older folder aside;
  /// one that resumes keeps the older files, and its own file invalidates their later steps. Throws
  /// Error(kIo).
  TensorBoardFile(const std::filesystem::path& folder, int64_t resumed_step);

  /// Adds a point to each of the curves. Points that cannot be written are left out, see RecordFile.
  void write(int64_t step, const Scalars& scalars);

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::optional<RecordFile> file_;
};

/// Parts of the format, for tests.
namespace tensorboard {

std::string record(std::string_view data);
std::string event_of_scalars(double wall_time, int64_t step, const Scalars& scalars);

}  // namespace tensorboard

}  // namespace fsdp::train
