#pragma once

// TextFile: keeps a text that changes in a file for other programs, such as the metrics that node_exporter's
// textfile collector reads.

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fsdp::openmetrics {

/// Replaces the file every few seconds by a rename, so that no reader sees a part of a text. A thread writes,
/// so a disk that stalls delays nobody. All users may read the file, because the collector is another user
/// than the run.
class TextFile {
 public:
  /// Writes the file. Throws Error(kIo) if that fails; later, failures are warnings. `text`: called by any
  /// thread.
  TextFile(std::filesystem::path path, std::function<std::string()> text, double interval_seconds = 5);
  /// Writes the last text.
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

 private:
  void write() const;
  void write_again();

  std::filesystem::path path_;
  std::function<std::string()> text_;
  bool failing_ = false;
  std::mutex mutex_;
  std::condition_variable_any end_;
  std::jthread thread_;
};

}  // namespace fsdp::openmetrics
