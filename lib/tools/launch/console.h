#pragma once

// The launcher's stdout and stderr, shared by all workers.
//
// Nothing here blocks, so the launcher reacts to signals even if its output is not read. Pending output is
// buffered up to a limit, and then a slow reader slows the workers down. If a reader takes nothing for two
// seconds, lines are dropped and counted until it reads again, because other workers would otherwise take the
// waiting workers for lost.

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

/// The width of the terminal (80 if unknown), or 0 if the descriptor is not a terminal.
int terminal_columns(int fd);

/// The beginning of `text` that fits into `columns` cells, so that transient text never wraps (only its last
/// row could be erased). Colour sequences (ESC [ ... letter) take no cell and are ended if the text is cut.
/// Other UTF-8 characters count as one cell. Control characters are removed.
std::string fit_columns(std::string_view text, int columns);

/// One destination of output: a terminal, a pipe or a file.
///
/// A terminal shows an unfinished line on its last row and erases it before the next line. A pipe or file
/// gets the beginning of the line, which the same writer can continue. If another writer writes in between,
/// the line is broken off and written again as a whole once it is complete. Complete lines are never torn.
class ConsoleStream {
 public:
  explicit ConsoleStream(int fd);

  bool is_terminal() const { return is_terminal_; }

  /// Writes a whole line. `writer` is any address that identifies the writer. Lines without a writer are
  /// never dropped.
  void line(const void* writer, std::string_view prefix, std::string_view text);
  /// Writes the beginning of a line.
  void beginning(const void* writer, std::string_view prefix, std::string_view text);
  /// Whether this writer has begun a line and can continue it.
  bool is_continuing(const void* writer) const { return open_writer_ == writer; }
  /// Breaks off the line that this writer has begun.
  void abandon(const void* writer);
  /// Shows text that the next text of the same writer replaces. Only on a terminal.
  void transient(std::string_view prefix, std::string_view text);
  /// Ends unfinished text: erases it on a terminal, otherwise ends the line.
  void settle();

  /// Writes as much as possible without blocking.
  void flush();
  size_t pending_bytes() const { return buffer_.size() - written_; }
  /// Whether to read more output from workers, because it can be buffered or will be dropped.
  bool takes_lines() const { return has_room() || is_stalled(); }
  /// Milliseconds until lines are dropped. -1: there is room, or lines are dropped already.
  int milliseconds_to_stall() const;
  /// Drops pending and all later output.
  void discard();
  int fd() const { return fd_; }
  /// The errno of the error that ended all writing, or 0.
  int failure() const { return failure_; }

 private:
  bool has_room() const;
  bool is_stalled() const;
  void tell_of_dropped();
  void put(std::string_view bytes);
  ssize_t write_some();

  int fd_;
  Descriptor own_;  ///< the same file, opened again for non-blocking writes if possible
  bool is_terminal_;
  bool is_regular_file_ = false;
  bool discarding_ = false;
  int failure_ = 0;
  std::string buffer_;
  size_t written_ = 0;   ///< bytes of buffer_ that have been written
  int64_t dropped_ = 0;  ///< lines dropped since the reader stalled
  std::chrono::steady_clock::time_point
      progress_at_{};                  ///< when the reader last took something, or had nothing to take
  bool row_is_drawn_ = false;          ///< terminal: the last row shows transient text
  const void* open_writer_ = nullptr;  ///< pipe or file: the writer of the unfinished line
  size_t open_bytes_ = 0;              ///< bytes of that line that have been written
};

/// stdout and stderr. They share one ConsoleStream if they are the same file, so that lines of one never tear
/// lines of the other.
class Console {
 public:
  Console(int out_fd, int err_fd);

  ConsoleStream& out() { return *out_; }
  ConsoleStream& err() { return *err_; }

  bool has_pending() const;
  int milliseconds_to_stall() const;
  void add_poll_entries(std::vector<pollfd>& entries) const;
  void flush();
  void settle();
  void discard();

 private:
  std::shared_ptr<ConsoleStream> out_, err_;
};

}  // namespace fsdp::launch
