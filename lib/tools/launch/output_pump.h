#pragma once

// Moves the workers' output to the launcher's console and to their log files, line by line.

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/console.h"
#include "tools/launch/descriptor.h"

namespace fsdp::launch {

/// Splits one output stream into lines. A line ends with "\n" or "\r\n". Text that ends with a lone "\r",
/// such as a progress bar, is transient: the following text replaces it. At most `longest_line_bytes` are
/// kept. A longer line is passed on in pieces, cut between UTF-8 characters.
class LineSplitter {
 public:
  using OnLine = std::function<void(std::string_view line)>;
  static constexpr size_t kLongestLineBytes = 256 << 10;

  explicit LineSplitter(size_t longest_line_bytes = kLongestLineBytes)
      : longest_line_bytes_(longest_line_bytes) {}

  /// Appends the next bytes and calls `on_line` for each line that they complete.
  void feed(std::string_view bytes, const OnLine& on_line);

  /// Ends the stream: completes a last line without a newline, and drops transient text.
  void finish(const OnLine& on_line);

  std::string_view unfinished() const { return line_; }
  /// Whether unfinished() ended with '\r'.
  bool is_transient() const { return after_return_; }
  /// Whether unfinished() replaced transient text, and is therefore probably transient too.
  bool replaces_transient() const { return replaces_transient_; }

 private:
  void complete(const OnLine& on_line);

  size_t longest_line_bytes_;
  std::string line_;
  bool after_return_ = false;
  bool replaces_transient_ = false;
};

/// A log file with the output of one worker, in the order in which it was read, without prefixes and
/// transient text. Appends to an existing file. If writing fails (a full disk), the failure is logged once
/// and the worker continues without the file.
class RankLog {
 public:
  /// Throws Error(kIo) if the file cannot be opened or is not a regular file.
  explicit RankLog(std::filesystem::path path);

  void line(std::string_view text);
  /// Writes the buffered lines.
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::string buffer_;
};

/// Destinations of the output of one worker. Its two streams may share a file.
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

  /// Takes the non-blocking read ends of the standard output and error of worker `index`. Output of an
  /// earlier process of the worker that is still in its pipes is also read.
  void attach(int index, Descriptor out, Descriptor err);

  /// Handles the end of a worker. Its output so far is still passed on, but not the later output of other
  /// processes that hold its pipes, such as a daemon that it left behind.
  void worker_ended(int index);

  /// Whether all output of all workers has been read.
  bool is_done() const;

  /// Adds the streams to poll, except streams whose console is too far behind.
  void add_poll_entries(std::vector<pollfd>& entries);
  /// Reads from the streams that are ready. `entries`: the entries of add_poll_entries() after poll().
  void read_ready(const std::vector<pollfd>& entries);

  /// Milliseconds until show_paused() has an unfinished line to show, because its writer has paused. -1:
  /// none.
  int milliseconds_to_pause() const;
  void show_paused();

  /// The last few lines, shortened, of the standard error of worker `index`, or of its standard output if it
  /// wrote no errors.
  std::vector<std::string> last_lines(int index) const;
  /// The file with the worker's standard error, or "".
  std::string log_path(int index) const;

 private:
  using Clock = std::chrono::steady_clock;

  struct WorkerOutput {
    std::string prefix;
    struct Sink {
      bool on_console = true;
      std::shared_ptr<RankLog> log;
      std::deque<std::string> last_lines;
    } out, err;
  };

  struct WorkerStream {
    WorkerOutput* worker;
    WorkerOutput::Sink* sink;
    ConsoleStream* console;
    Descriptor pipe;
    LineSplitter splitter{};
    std::optional<size_t> left_bytes{};  ///< bytes left in the pipe, once the worker has ended
    Clock::time_point changed_at{};      ///< when the unfinished line last grew
    size_t shown_bytes = 0;              ///< shown bytes of the unfinished line
  };

  void read(WorkerStream& stream);
  void finish(WorkerStream& stream);
  void pass_on(WorkerStream& stream, std::string_view line);
  static bool has_more_to_show(const WorkerStream& stream);

  Console& console_;
  std::deque<WorkerOutput> workers_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  std::vector<WorkerStream*> polled_;
  size_t first_entry_ = 0;
};

}  // namespace fsdp::launch
