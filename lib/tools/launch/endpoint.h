#pragma once

// TCP connections: the endpoint where nodes meet, and lines of text between two nodes. Only the look-up of
// names may block.

#include <poll.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

/// Whether the host is an address of this machine. Throws Error(kUsage) if it cannot be looked up.
bool is_local_host(const std::string& host);

/// A socket that listens on the host's address if that is numeric or "localhost". Otherwise it listens on all
/// addresses, because a name may resolve to different addresses on this machine and on others. Nothing if the
/// port is in use. Throws Error(kUsage) for other failures.
std::optional<Descriptor> listen_at(const std::string& host, int port);

/// The next connection, if there is one. `from` receives its address.
std::optional<Descriptor> accept_from(const Descriptor& listener, std::string& from);

/// A socket that is connecting, or nothing with the reason in `why`.
std::optional<Descriptor> start_connecting(const std::string& host, int port, std::string& why);

/// Sends and receives lines over a socket.
class LineSocket {
 public:
  explicit LineSocket(Descriptor socket) : socket_(std::move(socket)) {}

  void add_poll_entry(std::vector<pollfd>& entries) const;
  /// The descriptor. -1 if the socket is closed.
  int fd() const { return socket_.get(); }
  /// Queues the line and a newline.
  void send(std::string_view line);
  /// Sends and receives as much as possible without blocking. Stops receiving while more than the longest
  /// line waits for take_line(), so that a fast sender cannot fill the memory.
  void exchange();
  /// Sends as much as possible without blocking.
  void flush();
  /// The next line that has arrived, without its newline. Nothing if there is no whole line.
  std::optional<std::string> take_line();
  /// The part of the next line that has arrived. Also available after the end of the connection.
  std::string_view rest() const { return std::string_view(received_).substr(taken_); }

  /// Sets the longest allowed line. A longer line closes the connection.
  void set_longest_line(size_t bytes) { longest_line_bytes_ = bytes; }
  bool is_open() const { return socket_.is_open(); }
  bool has_unsent() const { return !unsent_.empty(); }
  const std::string& failure() const { return failure_; }
  /// Whether the other end was closed, for example by the end of its process, or nobody listens there. False
  /// if it is merely unreachable.
  bool peer_has_closed() const { return peer_has_closed_; }
  /// Whether the connection was refused because nobody listens there.
  bool is_refused() const { return is_refused_; }
  void close(const std::string& why);

 private:
  Descriptor socket_;
  size_t longest_line_bytes_ = 16 << 10;
  std::string unsent_, received_, failure_;
  bool peer_has_closed_ = false, is_refused_ = false;
  size_t taken_ = 0;  ///< bytes of received_ that take_line() has returned
};

}  // namespace fsdp::launch
