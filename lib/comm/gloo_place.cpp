#include "comm/gloo_place.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "comm/bounded_call.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

/// The address of this host from which packets to the master leave; gloo listens there.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    util::fail(util::ErrorKind::kUsage, "MASTER_ADDR: expected the name or address of a host; \"", host,
               "\" cannot be resolved: ", gai_strerror(code));
  }
  std::string address = "127.0.0.1";
  // Connecting a datagram socket sends nothing; it asks the kernel for the route.
  int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    char text[NI_MAXHOST];
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    }
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return address;
}

constexpr const char* kConnected = "all are connected";

/// gloo's connecting ends on every rank for itself: a rank that is through and leaves at once closes a
/// connection that a slower one has, but has not seen yet, and there connecting fails. So each waits here
/// for all.
void wait_for_all(c10d::Store& store, int rank, int size) {
  if (size == 1) return;
  if (store.add("connected", 1) == size) store.set(kConnected, std::string());
  const std::vector<uint8_t> failure = store.get(kConnected);
  if (!failure.empty()) throw std::runtime_error(std::string(failure.begin(), failure.end()));
  // The first rank, with whose process the store may end, stays until the others have read this.
  if (rank == 0) {
    store.wait({"all know"});
  } else if (store.add("know", 1) == size - 1) {
    store.set("all know", std::string());
  }
}

/// To those who wait for all, so that they say what went wrong, and at once.
void tell_failure(c10d::Store& store, const std::string& cause) {
  try {
    store.compareSet(kConnected, "", "a peer could not connect: " + cause);
  } catch (const std::exception&) {
    // Then they see the end of the store.
  }
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(const GlooPlace& place, const std::string& prefix,
                                                   int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr && *interface != '\0'
                                 ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                 : c10d::ProcessGroupGloo::createDeviceForHostname(place.address));
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, place.store);
  try {
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    wait_for_all(*store, rank, size);
    return group;
  } catch (const std::exception& error) {
    tell_failure(*store, first_line(error.what()));
    throw;
  }
}

}  // namespace

GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store) {
  return {.store = std::move(store),
          .address = environment.single_node()
                         ? std::string("127.0.0.1")
                         : address_towards(environment.master_addr, environment.master_port),
          .timeout = options.timeout()};
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size) {
  // Each of what connecting waits for has the time-out; only the store's shorter answers have none.
  constexpr std::chrono::seconds kGrace{5};
  auto group = call_within(2 * place.timeout + kGrace, [=] { return connect(place, prefix, rank, size); });
  if (!group) throw std::runtime_error("timeout: the run's store, at rank 0, does not answer");
  return *group;
}

}  // namespace fsdp::comm
