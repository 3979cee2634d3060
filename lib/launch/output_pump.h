#pragma once

// Moves what the workers write to the launcher's console and to their log files, line by line.

#include <poll.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/console.h"
#include "launch/descriptor.h"
#include "launch/line_splitter.h"
#include "launch/rank_log.h"

namespace fsdp::launch {

class OutputPump {
 public:
  /// For the workers first_rank, first_rank + 1, ...; with a log_dir their log files are opened. Throws
  /// Error(kIo). The console must outlive the pump.
  OutputPump(Console& console, const std::string& log_dir, int first_rank, int workers);

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

  /// The last few lines that worker `index` wrote to its standard error, shortened.
  const std::deque<std::string>& last_error_lines(int index) const;
  /// Its log file, or "" without one.
  std::string log_path(int index) const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    std::string prefix;
    std::unique_ptr<RankLog> log;
    std::deque<std::string> last_error_lines;
  };

  struct Stream {
    Worker* worker;
    ConsoleStream* console;
    bool is_error;
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
