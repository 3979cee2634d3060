#include "base/openmetrics/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/log.h"

namespace fsdp::openmetrics {
namespace {

using Clock = std::chrono::steady_clock;
using util::Descriptor;

constexpr int kMostAcceptedAtOnce = 8;
constexpr size_t kMostBytesAtOnce = 4096;
constexpr size_t kMostDrainedBytes = 65536;  ///< bytes that a client may send after its request
constexpr double kDrainSeconds = 1;
constexpr std::chrono::seconds kPauseWithoutDescriptors{1};

Descriptor listen_at(const std::string& host, int port) {
  const auto refuse = [&](const std::string& reason) {
    fail(ErrorKind::kUsage, "cannot listen at ", host, " port ", port, ": ", reason);
  };
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) refuse(::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  Descriptor listener(
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol));
  const int yes = 1;
  // Connections of the last run may still be in TIME_WAIT.
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  constexpr int kBacklog = 64;
  if (!listener.is_open() || ::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener.get(), kBacklog) != 0) {
    refuse(errno == EADDRINUSE      ? "another program listens there"
           : errno == EADDRNOTAVAIL ? "this machine has no such address"
                                    : util::errno_text(errno));
  }
  return listener;
}

/// Returns the time-out for poll(); -1 for the end of time.
int milliseconds_until(Clock::time_point due, Clock::time_point now) {
  if (due == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return (is_capital(x) ? x + 32 : x) == y; });
}

/// Returns the length of the head of a request, with the empty line that ends it; npos: it is incomplete.
size_t head_length(std::string_view request) {
  for (const std::string_view end : {"\r\n\r\n", "\n\n"}) {
    if (const size_t at = request.find(end); at != std::string_view::npos) return at + end.size();
  }
  return std::string_view::npos;
}

/// Returns the next line without its end, and removes it from `text`.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// Returns the values of all headers of this name, given in small letters, as one list.
std::string header(std::string_view lines, std::string_view name) {
  std::string values;
  while (!lines.empty()) {
    const std::string_view line = take_line(lines);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !equal_without_case(line.substr(0, colon), name)) continue;
    values += (values.empty() ? "" : ",") + std::string(line.substr(colon + 1));
  }
  return values;
}

std::string response(const std::string& status, const HttpPage& page, bool with_body = true,
                     const std::string& more_headers = {}) {
  return concat("HTTP/1.1 ", status, "\r\nContent-Type: ", page.content_type,
                "\r\nContent-Length: ", page.body.size(), "\r\nConnection: close\r\n", more_headers, "\r\n",
                with_body ? page.body : std::string());
}

std::string refusal(const std::string& status, bool with_body = true, const std::string& more_headers = {}) {
  return response(status, {"text/plain; charset=utf-8", status + "\n"}, with_body, more_headers);
}

}  // namespace

struct HttpServer::Connection {
  Descriptor socket;
  Clock::time_point due;  ///< the connection is closed then
  std::string request{}, response{};
  size_t sent = 0;
  size_t drained = 0;
  bool drains = false;  ///< the answer is sent, and the client is to close the connection
};

HttpServer::HttpServer(const std::string& host, int port, std::string path, MakePage make_page,
                       const HttpLimits& limits)
    : path_(std::move(path)),
      make_page_(std::move(make_page)),
      limits_(limits),
      listener_(listen_at(host, port)),
      end_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!end_.is_open()) fail(ErrorKind::kUsage, "cannot open an eventfd: ", util::errno_text(errno));
  thread_ = util::start_thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  const uint64_t one = 1;
  static_cast<void>(::write(end_.get(), &one, sizeof(one)));
  thread_.join();
}

int HttpServer::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void HttpServer::serve() {
  std::vector<Connection> connections;  // the oldest first
  std::vector<pollfd> entries;
  connections.reserve(limits_.connections);
  entries.reserve(limits_.connections + 2);
  Clock::time_point accepts_from{};
  while (true) {
    const auto before = Clock::now();
    const bool accepts = before >= accepts_from;
    auto next_due = accepts ? Clock::time_point::max() : accepts_from;
    entries.assign({{end_.get(), POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}});
    for (const Connection& each : connections) {
      const bool sends = !each.response.empty() && !each.drains;
      entries.push_back({each.socket.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
      next_due = std::min(next_due, each.due);
    }
    ::poll(entries.data(), entries.size(), milliseconds_until(next_due, before));
    if (entries[0].revents != 0) return;
    const auto now = Clock::now();
    for (size_t i = 0; i < connections.size(); ++i) {
      Connection& each = connections[i];
      const bool stays = entries[i + 2].revents == 0 || advance(each);
      if (!stays || now >= each.due) each.socket.close();
    }
    std::erase_if(connections, [](const Connection& each) { return !each.socket.is_open(); });
    if (entries[1].revents != 0 && !accept_some(connections)) accepts_from = now + kPauseWithoutDescriptors;
    std::this_thread::sleep_for(util::duration_of(limits_.pause_seconds));
  }
}

/// Returns whether the system can open further connections.
bool HttpServer::accept_some(std::vector<Connection>& connections) const {
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    }
    if (connections.size() >= limits_.connections) connections.erase(connections.begin());
    connections.push_back({std::move(socket), Clock::now() + util::duration_of(limits_.request_seconds)});
  }
  return true;
}

bool HttpServer::advance(Connection& connection) const {
  try {
    return connection.response.empty() || connection.drains ? receive(connection) : send(connection);
  } catch (const std::exception& error) {
    util::log_debug(concat("a request for ", path_, " failed: ", error.what()));
    return false;
  }
}

bool HttpServer::receive(Connection& connection) const {
  std::array<char, kMostBytesAtOnce> bytes;
  const ssize_t count = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  if (connection.drains) return (connection.drained += static_cast<size_t>(count)) < kMostDrainedBytes;
  connection.request.append(bytes.data(), static_cast<size_t>(count));
  const size_t length = head_length(connection.request);
  if (!is_capital(connection.request.front())) {
    connection.response = refusal("400 Bad Request");
  } else if (std::min(length, connection.request.size()) > limits_.request_bytes) {
    connection.response = refusal("431 Request Header Fields Too Large");
  } else if (length != std::string::npos) {
    connection.response = answer(std::string_view(connection.request).substr(0, length));
  } else {
    return true;
  }
  connection.due = Clock::now() + util::duration_of(limits_.request_seconds);
  return send(connection);
}

bool HttpServer::send(Connection& connection) const {
  const std::string_view rest = std::string_view(connection.response).substr(connection.sent);
  const ssize_t count = ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<size_t>(count);
  if (connection.sent < connection.response.size()) return true;
  // Closing at once would drop the answer if the client has sent more than was read.
  connection.drains = true;
  connection.due = Clock::now() + util::duration_of(kDrainSeconds);
  return ::shutdown(connection.socket.get(), SHUT_WR) == 0;
}

std::string HttpServer::answer(std::string_view head) const {
  const std::string_view line = take_line(head);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return refusal("400 Bad Request");
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  std::string_view target = line.substr(first + 1, last - first - 1);
  if (!version.starts_with("HTTP/") || target.find(' ') != std::string_view::npos) {
    return refusal("400 Bad Request");
  }
  if (!version.starts_with("HTTP/1.")) return refusal("505 HTTP Version Not Supported");
  if (constexpr std::string_view kScheme = "http://"; target.starts_with(kScheme)) {  // as proxies send it
    const size_t slash = target.find('/', kScheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const bool with_body = method != "HEAD";
  if (target.substr(0, target.find('?')) != path_) return refusal("404 Not Found", with_body);
  if (method != "GET" && method != "HEAD") {
    return refusal("405 Method Not Allowed", /*with_body=*/true, "Allow: GET, HEAD\r\n");
  }
  return response("200 OK", make_page_(header(head, "accept")), with_body);
}

}  // namespace fsdp::openmetrics
