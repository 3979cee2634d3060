#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "state/checkpoint/background_task.h"
#include "state/manifest/folders.h"

namespace fsdp::train {

/// Copies finished checkpoints to a store of objects while training continues (checkpoint.upload_to).
///
/// Each rank sends the file that it wrote. When all have, rank 0 sends the small files of the run, and the
/// manifest last, then removes older checkpoints there. One checkpoint is sent at a time; of those that
/// become complete meanwhile, only the newest is sent after it. An upload that fails does not stop the run:
/// the next checkpoint is tried, and require_last() throws at the end. Every method is collective unless it
/// says otherwise.
class CheckpointUploads {
 public:
  struct UploadHooks {
    std::function<void(const std::string& message, bool warning)> say;  ///< called on rank 0
    std::function<checkpoint::Retention()> retention;  ///< what stays in the store; on rank 0
  };

  /// `to`: a remote folder that belongs to the run. `output`: the run's folder. The communicator must outlive
  /// the object. Not collective.
  CheckpointUploads(std::string to, std::filesystem::path output, comm::Communicator& communicator,
                    UploadHooks hooks);

  /// Begins to send a complete checkpoint, or remembers it as the next one.
  void add(const std::filesystem::path& folder, int64_t step);
  /// Goes on without waiting.
  void poll();
  /// Waits until every checkpoint is sent or has failed.
  void finish();

  /// Steps whose local folders are still needed. Not collective, the same on every rank.
  std::vector<int64_t> steps_in_use() const;

  /// Throws Error(kIo) if the newest checkpoint was not sent. Not collective, the same on every rank.
  void require_last() const;

 private:
  struct Upload {
    std::filesystem::path folder;
    int64_t step = 0;
    bool files_are_sent = false;
  };
  void begin(Upload upload);
  void go_on();
  void send_files(const Upload& upload) const;
  void complete(const Upload& upload);
  std::string remote(const std::filesystem::path& path) const;

  std::string to_;
  std::filesystem::path output_;
  comm::Communicator& communicator_;
  UploadHooks hooks_;
  std::optional<Upload> current_, next_;
  std::string failure_;
  std::vector<std::string> removed_;                  ///< by complete(), for the log
  std::unique_ptr<checkpoint::BackgroundTask> task_;  ///< the last member: destroyed before what it uses
};

}  // namespace fsdp::train
