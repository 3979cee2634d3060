#pragma once

// The launcher's own stdout and stderr, shared by all workers.
//
// Nothing here blocks: what a slow reader does not take waits in a buffer, and has_room() tells the pump when
// to stop reading from workers, so the launcher answers signals whatever becomes of its output.

#include <poll.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launch/descriptor.h"

namespace fsdp::launch {

/// One destination: a terminal, a pipe or a file.
///
/// Unfinished text is shown as the destination allows. A terminal shows it on its last row and erases that
/// before the next line. A pipe or file gets the beginning of the line; if the same writer goes on, so does
/// the line, and if another one comes between, the line is broken off and comes again in whole once it is
/// complete. Either way a line that was shown complete is never torn.
class ConsoleStream {
 public:
  explicit ConsoleStream(int fd);

  bool is_terminal() const { return is_terminal_; }

  /// A whole line. `writer` is whatever tells writers apart.
  void line(const void* writer, std::string_view prefix, std::string_view text);
  /// The beginning of a line.
  void beginning(const void* writer, std::string_view prefix, std::string_view text);
  /// The beginning that is shown is this writer's and can still be continued.
  bool is_continuing(const void* writer) const { return open_writer_ == writer; }
  /// What this writer began will not be continued.
  void abandon(const void* writer);
  /// Text that the next text of the same writer replaces; only a terminal shows it.
  void transient(std::string_view prefix, std::string_view text);
  /// Ends what is unfinished: erases it on a terminal, completes the line elsewhere.
  void settle();

  /// Writes what can be written without waiting.
  void flush();
  size_t pending_bytes() const { return buffer_.size() - written_; }
  /// Gives up what is pending and all that follows.
  void discard();
  int fd() const { return fd_; }
  /// Why writing has stopped for good (an errno value), or 0.
  int failure() const { return failure_; }

 private:
  void put(std::string_view bytes);
  void break_off();
  ssize_t write_some();

  int fd_;
  Descriptor own_;  ///< the same file opened anew for non-blocking writes, where the system allows
  bool is_terminal_;
  bool is_regular_file_ = false;
  bool discarding_ = false;
  int failure_ = 0;
  std::string buffer_;
  size_t written_ = 0;                 ///< bytes of buffer_ that are out
  bool row_is_drawn_ = false;          ///< terminal: the last row shows transient text
  const void* open_writer_ = nullptr;  ///< elsewhere: whose line is begun and not ended
  size_t open_bytes_ = 0;              ///< bytes of that line which are out
};

/// stdout and stderr; one ConsoleStream for both when they lead to the same place, so that lines of the one
/// never tear lines of the other.
class Console {
 public:
  Console(int out_fd, int err_fd);

  ConsoleStream& out() { return *out_; }
  ConsoleStream& err() { return *err_; }

  bool has_room() const;
  bool has_pending() const;
  void add_poll_entries(std::vector<pollfd>& entries) const;
  void flush();
  void settle();
  void discard();

 private:
  std::shared_ptr<ConsoleStream> out_, err_;
};

}  // namespace fsdp::launch
