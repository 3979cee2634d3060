#pragma once

// The files of a run under --log-dir, in torchrun's layout:
//   <log_dir>/<run id>_<six characters>/attempt_<restarts>/<local rank>/{stdout.log,stderr.log,error.json}

#include <filesystem>
#include <string>

#include "tools/launch/verdict.h"

namespace fsdp::launch {

class RunFolder {
 public:
  /// Makes a new folder for the run in `parent`, or in the system's temporary folder if `parent` is empty.
  /// The destructor removes the folder unless it is `kept`. Throws Error(kIo).
  RunFolder(const std::string& parent, const std::string& run_id, bool kept);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The folder of a worker, created if necessary. Throws Error(kIo).
  std::filesystem::path of_worker(int restarts, int local_rank) const;

 private:
  std::filesystem::path path_;
  bool kept_;
};

/// The file in which a worker may report why it failed (TORCHELASTIC_ERROR_FILE).
std::filesystem::path error_file_in(const std::filesystem::path& worker_folder);

/// The file in which this library's programs report their Standing when the run stops.
std::filesystem::path activity_file_in(const std::filesystem::path& worker_folder);

/// Reads an activity file. An empty Standing if the file is absent or malformed.
Standing read_activity_file(const std::filesystem::path& path);

/// The "message" or "message.message" of an error file, which is a JSON object. "" if the file is absent or
/// malformed.
std::string read_error_file(const std::filesystem::path& path);

}  // namespace fsdp::launch
