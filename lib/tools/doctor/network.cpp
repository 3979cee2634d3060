#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <set>

#include "base/util/clock.h"
#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/doctor/checks.h"

namespace fsdp::doctor {
namespace {

using util::Descriptor;

sockaddr_in address_of(in_addr_t host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

/// A listening socket. On failure a closed one, with errno.
Descriptor listening(in_addr_t host, int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(host, port);
  if (!socket.is_open() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1) != 0) {
    return Descriptor();
  }
  return socket;
}

int port_of(const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? ntohs(address.sin_port)
             : 0;
}

Finding check_loopback() {
  Finding failed{FindingVerdict::kFail, "loopback", "", "bring the interface up: ip link set lo up"};
  const Descriptor server = listening(INADDR_LOOPBACK, 0);
  if (!server.is_open()) {
    failed.text = concat("cannot listen on 127.0.0.1: ", util::errno_text(errno));
    return failed;
  }
  const int port = port_of(server);
  const Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(INADDR_LOOPBACK, port);
  if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    failed.text = concat("cannot connect to 127.0.0.1: ", util::errno_text(errno));
    return failed;
  }
  return {FindingVerdict::kOk, "loopback", concat("connected to 127.0.0.1, port ", port, ", which was free"),
          ""};
}

Finding check_host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) {
    return {FindingVerdict::kWarn, "host name", util::errno_text(errno), "set one, as hostnamectl does"};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(name, nullptr, &hints, &list); error != 0) {
    return {FindingVerdict::kWarn, "host name", concat(name, " cannot be resolved: ", ::gai_strerror(error)),
            "with several nodes, give --local-addr to fsdp-launch, or add the name to /etc/hosts"};
  }
  std::set<std::string> addresses;
  bool only_loopback = true;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    char text[INET6_ADDRSTRLEN] = {};
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    addresses.insert(text);
    only_loopback = only_loopback && (std::string(text).starts_with("127.") || std::string(text) == "::1");
  }
  ::freeaddrinfo(list);
  const std::string text = concat(name, " is ", util::join({addresses.begin(), addresses.end()}, ", "));
  return {FindingVerdict::kOk, "host name",
          only_loopback ? text + ", which other nodes cannot reach (fsdp-launch --local-addr)" : text, ""};
}

/// c10d's store looks up the name of each peer's address, in IPv6.
Finding check_reverse_lookup() {
  constexpr double kSlow = 1;  // a reachable name server answers in milliseconds
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &address.sin6_addr);
  char name[NI_MAXHOST];
  const auto begin = std::chrono::steady_clock::now();
  const int error = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, name,
                                  sizeof name, nullptr, 0, 0);
  const double seconds = util::seconds_since(begin);
  const std::string took = util::fixed(seconds, seconds < kSlow ? 3 : 1) + " s";
  if (seconds < kSlow) return {FindingVerdict::kOk, "reverse lookup", "of ::ffff:127.0.0.1 took " + took, ""};
  return {FindingVerdict::kWarn, "reverse lookup",
          concat("of ::ffff:127.0.0.1 took ", took, error == 0 ? "" : concat(": ", ::gai_strerror(error)),
                 "; every connection to a run's store waits for one"),
          "add the line \"::ffff:127.0.0.1 localhost\" to /etc/hosts, and the nodes' addresses likewise"};
}

Finding check_port(int port, const std::string& option) {
  if (listening(INADDR_ANY, port).is_open()) return {FindingVerdict::kOk, concat("port ", port), "free", ""};
  return {FindingVerdict::kWarn, concat("port ", port), util::errno_text(errno),
          concat("runs of several nodes that meet here need another: ", option)};
}

}  // namespace

Findings check_network() {
  return {check_loopback(), check_host_name(), check_reverse_lookup(), check_port(29500, "--master-port"),
          check_port(29400, "--rdzv-endpoint HOST:PORT")};
}

}  // namespace fsdp::doctor
