#pragma once

// The files of a run under --log-dir, laid out as torchrun does:
//   <log_dir>/<run id>_<six characters>/attempt_<restarts>/<local rank>/{stdout.log,stderr.log,error.json}

#include <filesystem>
#include <string>

#include "launch/verdict.h"

namespace fsdp::launch {

class RunFolder {
 public:
  /// Makes a new folder of the run in `parent`, or in the folder for temporary files if that is empty, with a
  /// folder for each attempt and worker as they are asked for. A folder that is not `kept` goes with the
  /// object. Throws Error(kIo).
  RunFolder(const std::string& parent, const std::string& run_id, bool kept);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The folder of a worker, which is there when this returns. Throws Error(kIo).
  std::filesystem::path of_worker(int restarts, int local_rank) const;

 private:
  std::filesystem::path path_;
  bool kept_;
};

/// The file in which a worker may say why it failed (TORCHELASTIC_ERROR_FILE).
std::filesystem::path error_file_in(const std::filesystem::path& worker_folder);

/// The file beside it in which programs of this toolkit say where they stood when the run did not go on.
std::filesystem::path activity_file_in(const std::filesystem::path& worker_folder);

/// What it says; nothing said when there is none, or none that can be read.
Standing read_activity_file(const std::filesystem::path& path);

/// What an error file says: "message" or "message.message" of a JSON object. "" when there is none, or none
/// that can be read.
std::string read_error_file(const std::filesystem::path& path);

}  // namespace fsdp::launch
