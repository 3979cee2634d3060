#pragma once

// A connection to an HTTP server of this machine, for tests that also send what no client would.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "base/util/descriptor.h"

namespace fsdp::testing {

class HttpConnection {
 public:
  /// Throws std::runtime_error if nobody listens there.
  explicit HttpConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("nobody listens at port " + std::to_string(port));
    }
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  /// Returns whether the server still takes the bytes.
  bool send(std::string_view bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  /// Returns all that comes until the server closes the connection.
  std::string read_all() {
    std::string text;
    char bytes[4096];
    for (ssize_t count; (count = ::recv(socket_.get(), bytes, sizeof(bytes), 0)) > 0;) {
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  util::Descriptor socket_;
};

/// The answer to a request without body, with its head.
inline std::string http_answer(int port, const std::string& target, const std::string& headers = "",
                               const std::string& method = "GET") {
  HttpConnection connection(port);
  connection.send(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  return connection.read_all();
}

}  // namespace fsdp::testing
