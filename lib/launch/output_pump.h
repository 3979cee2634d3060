#pragma once

// Moves what the workers write to the launcher's console and to their log files, line by line.

#include <poll.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/console.h"
#include "launch/descriptor.h"

namespace fsdp::launch {

/// Where the output of one worker goes. Files are continued if they are there; two streams may share one.
struct OutputPlan {
  struct Target {
    bool on_console = true;
    std::filesystem::path file{};  ///< empty: none
  };
  int rank = 0;
  Target out{}, err{};
};

class OutputPump {
 public:
  /// Opens the log files. Throws Error(kIo). The console must outlive the pump.
  OutputPump(Console& console, const std::vector<OutputPlan>& plans);

  /// Takes over the read ends of worker `index`'s (from 0) standard output and error; both non-blocking.
  void attach(int index, Descriptor out, Descriptor err);

  /// The worker is gone: what it wrote is still passed on, but not what others that hold its pipes (a daemon
  /// that it left behind) write from now on.
  void worker_ended(int index);

  /// All has been read from all workers.
  bool is_done() const;

  /// Adds the streams to poll, none of them while the console is too far behind.
  void add_poll_entries(std::vector<pollfd>& entries);
  /// Reads from those streams that poll found ready; `entries` as add_poll_entries left them.
  void read_ready(const std::vector<pollfd>& entries);

  /// A line whose writer pauses in the middle of it is shown as far as it goes. Milliseconds until there is
  /// such a line to show, or -1.
  int milliseconds_to_pause() const;
  void show_paused();

  /// The last few lines that worker `index` wrote to its standard error, or to its standard output if there
  /// is nothing there; shortened.
  std::vector<std::string> last_lines(int index) const;
  /// The file that has its standard error, or "" without one.
  std::string log_path(int index) const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    std::string prefix;
    struct Sink {
      bool on_console = true;
      std::shared_ptr<RankLog> log;
      std::deque<std::string> last_lines;
    } out, err;
  };

  struct Stream {
    Worker* worker;
    Worker::Sink* sink;
    ConsoleStream* console;
    Descriptor pipe;
    LineSplitter splitter{};
    std::optional<size_t> left_bytes{};  ///< set once the worker is gone: what it left in the pipe
    Clock::time_point changed_at{};      ///< when the unfinished line last grew
    size_t shown_bytes = 0;              ///< how much of the unfinished line is shown
  };

  void read(Stream& stream);
  void finish(Stream& stream);
  void pass_on(Stream& stream, std::string_view line);
  static bool has_more_to_show(const Stream& stream);

  Console& console_;
  std::deque<Worker> workers_;
  std::vector<std::unique_ptr<Stream>> streams_;  ///< 2 * index: stdout, 2 * index + 1: stderr
  std::vector<Stream*> polled_;
  size_t first_entry_ = 0;
};

}  // namespace fsdp::launch
