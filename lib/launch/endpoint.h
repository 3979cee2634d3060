#pragma once

// TCP: where the nodes meet, and lines of text between two of them. Nothing here blocks but the look-up of
// names.

#include <poll.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/descriptor.h"

namespace fsdp::launch {

/// The host is an address of this machine. Throws Error(kUsage) when it cannot be looked up.
bool is_local_host(const std::string& host);

/// A socket that listens on the host's address if that is written as a number or means loopback, else, since
/// a name may mean another address on this machine than on others, on all addresses. Nothing when the port is
/// taken. Throws Error(kUsage) when it cannot be opened otherwise.
std::optional<Descriptor> listen_at(const std::string& host, int port);

/// The next connection, or nothing; `from` receives its address.
std::optional<Descriptor> accept_from(const Descriptor& listener, std::string& from);

/// A socket that is connecting, or nothing; `why` receives the reason then.
std::optional<Descriptor> start_connecting(const std::string& host, int port, std::string& why);

/// Lines that come and go over a socket.
class LineSocket {
 public:
  explicit LineSocket(Descriptor socket) : socket_(std::move(socket)) {}

  void add_poll_entry(std::vector<pollfd>& entries) const;
  /// Appends the line and a newline to what is to be sent.
  void send(std::string_view line);
  /// Sends and receives what goes without waiting, until there is more than the longest line to take: whoever
  /// sends faster than its lines are taken fills no memory here.
  void exchange();
  /// Only sends.
  void flush();
  /// A line that has come, without its newline.
  std::optional<std::string> take_line();

  /// Longer lines close the connection.
  void set_longest_line(size_t bytes) { longest_line_bytes_ = bytes; }
  bool is_open() const { return socket_.is_open(); }
  bool has_unsent() const { return !unsent_.empty(); }
  const std::string& failure() const { return failure_; }
  void close(const std::string& why);

 private:
  void send_some();
  void receive_some();

  Descriptor socket_;
  size_t longest_line_bytes_ = 16 << 10;
  std::string unsent_, received_, failure_;
  size_t taken_ = 0;  ///< bytes of received_ that take_line() has given out
};

}  // namespace fsdp::launch
