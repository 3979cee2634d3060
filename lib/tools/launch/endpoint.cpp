#include "tools/launch/endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "base/util/error.h"

namespace fsdp::launch {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// Looks up addresses. Null with the reason in `why` if there are none.
Addresses look_up(const std::string& host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = ::gai_strerror(error);
  return {error == 0 ? found : nullptr, ::freeaddrinfo};
}

bool is_ipv6_loopback(const addrinfo& entry) {
  return entry.ai_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(entry.ai_addr)->sin6_addr);
}

Descriptor open_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string text_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "?";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
                NI_NUMERICHOST);
  return host;
}

}  // namespace

bool is_local_host(const std::string& host) {
  std::string why;
  const Addresses addresses = look_up(host, 0, 0, why);
  if (!addresses) {
    fail(ErrorKind::kUsage, "cannot look up the host \"", host, "\" where the nodes meet: ", why);
  }
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next) {
    // Only an address of this machine can be bound.
    const Descriptor probe = open_socket(entry->ai_family);
    if (probe.is_open() && ::bind(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0) return true;
  }
  return false;
}

std::optional<Descriptor> listen_at(const std::string& host, int port) {
  std::string why;
  Addresses addresses = look_up(host, port, AI_NUMERICHOST, why);
  if (!addresses) {
    addresses = look_up(host, port, 0, why);
    if (!addresses || host != "localhost") addresses = look_up("", port, AI_PASSIVE, why);
  }
  int error = 0;
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next) {
    Descriptor listener = open_socket(entry->ai_family);
    const int yes = 1;
    // Connections of the last run may still be in TIME_WAIT.
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    constexpr int kWaiting = 1 << 16;  // the system reduces it to net.core.somaxconn
    if (listener.is_open() && ::bind(listener.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::listen(listener.get(), kWaiting) == 0) {
      return listener;
    }
    error = errno;
    if (error == EADDRINUSE) return std::nullopt;
  }
  fail(ErrorKind::kUsage, "cannot listen at ", host, ":", port, ": ", error ? util::errno_text(error) : why,
       "; the endpoint must be an address of this node");
}

std::optional<Descriptor> accept_from(const Descriptor& listener, std::string& from) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  Descriptor socket(
      ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) return std::nullopt;
  from = text_of(address, size);
  return socket;
}

std::optional<Descriptor> start_connecting(const std::string& host, int port, std::string& why) {
  const Addresses addresses = look_up(host, port, 0, why);
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next) {
    // A name may have an IPv6 loopback address where nobody listens. The next address is used then.
    if (entry->ai_next && is_ipv6_loopback(*entry)) continue;
    Descriptor socket = open_socket(entry->ai_family);
    const int yes = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 || errno == EINPROGRESS)
      return socket;
    why = util::errno_text(errno);
  }
  return std::nullopt;
}

void LineSocket::add_poll_entry(std::vector<pollfd>& entries) const {
  if (!is_open()) return;
  const short events = static_cast<short>(POLLIN | (has_unsent() ? POLLOUT : 0));
  entries.push_back({socket_.get(), events, 0});
}

void LineSocket::send(std::string_view line) {
  if (!is_open()) return;
  unsent_ += line;
  unsent_ += '\n';
}

void LineSocket::flush() {
  if (!is_open() || !has_unsent()) return;
  const ssize_t count = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
  if (count == static_cast<ssize_t>(unsent_.size())) {
    std::string().swap(unsent_);  // frees the memory of a large message
  } else if (count >= 0) {
    unsent_.erase(0, static_cast<size_t>(count));
  } else if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN) {
    peer_has_closed_ = is_refused_ = errno == ECONNREFUSED;
    close(util::errno_text(errno));
  }
}

void LineSocket::exchange() {
  flush();
  if (!is_open()) return;
  received_.erase(0, std::exchange(taken_, 0));
  char buffer[1 << 14];
  while (received_.size() <= longest_line_bytes_) {
    const ssize_t count = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (count > 0) {
      received_.append(buffer, static_cast<size_t>(count));
      continue;
    }
    peer_has_closed_ = count == 0 || errno == ECONNRESET || errno == ECONNREFUSED;
    is_refused_ = count < 0 && errno == ECONNREFUSED;
    if (count == 0) return close("the connection was closed");
    if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN) close(util::errno_text(errno));
    return;
  }
  if (received_.find('\n') > longest_line_bytes_) close("it sent a line that is too long");
}

std::optional<std::string> LineSocket::take_line() {
  const size_t end = received_.find('\n', taken_);
  if (end == std::string::npos) return std::nullopt;
  std::string line = received_.substr(taken_, end - taken_);
  taken_ = end + 1;
  return line;
}

void LineSocket::close(const std::string& why) {
  if (!is_open()) return;
  failure_ = why;
  socket_.close();
}

}  // namespace fsdp::launch
