#pragma once

// HttpServer: serves one page over HTTP to programs that read it now and then, such as Prometheus. One thread
// serves all connections, and limits bound the memory and the time that strangers take.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/util/descriptor.h"

namespace fsdp::openmetrics {

struct HttpPage {
  std::string content_type, body;
};

/// The limits of a server, which tests make smaller.
struct HttpLimits {
  size_t connections = 32;       ///< another connection closes the oldest
  size_t request_bytes = 8192;   ///< longest head of a request
  double request_seconds = 5;    ///< time for a whole request to arrive, and then for the answer to be taken
  double pause_seconds = 0.005;  ///< pause after each round of work, during which requests wait
};

class HttpServer {
 public:
  /// Returns the page for the value of the header Accept. Called by the server's thread.
  using MakePage = std::function<HttpPage(std::string_view accept)>;

  /// Listens at `host`, an address or a name of this machine, and serves `path` until the destructor. Port 0:
  /// a free one. Throws Error(kUsage) with the address and the reason if it cannot listen there.
  HttpServer(const std::string& host, int port, std::string path, MakePage make_page,
             const HttpLimits& limits = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Connection;

  void serve();
  bool accept_some(std::vector<Connection>& connections) const;
  /// Continues a connection that is ready. Returns whether it stays open.
  bool advance(Connection& connection) const;
  bool receive(Connection& connection) const;
  bool send(Connection& connection) const;
  /// Returns the answer to the head of a request.
  std::string answer(std::string_view head) const;

  std::string path_;
  MakePage make_page_;
  HttpLimits limits_;
  util::Descriptor listener_, end_;  ///< end_ becomes readable when the thread is to end
  std::thread thread_;
};

}  // namespace fsdp::openmetrics
