#include "comm/gloo/gloo_place.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/text.h"
#include "base/util/time_slices.h"
#include "comm/api/call_within.h"

namespace fsdp::comm {
namespace {

/// The address of this host from which packets to `host` are sent; gloo listens there.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    util::fail(ErrorKind::kUsage, "MASTER_ADDR: expected the name or address of a host; \"", host,
               "\" cannot be resolved: ", gai_strerror(code));
  }
  std::string address = "127.0.0.1";
  // Connecting a datagram socket sends nothing; the kernel only looks up the route.
  int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
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

/// The store as gloo sees it while it connects a group. Each member sets an entry of a few words for each
/// other member, "0/RANK", and reads the entries of all members one after another. Here the entries go up and
/// down a tree and are read at once.
class MeshStore final : public c10d::Store {
 public:
  MeshStore(RunStore store, int rank, int size)
      : Store(store->getTimeout()), store_(std::move(store)), rank_(rank), size_(size) {}

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override { return store_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    const std::string own = concat("/", rank_);
    if (!key.ends_with(own)) return store_->set(key, value);
    const std::string folder = key.substr(0, key.size() - own.size() + 1);
    TextMeeting meeting{.purpose = folder + "mesh", .combine = [](const std::vector<std::string>& texts) {
                          return util::join(texts, "");
                        }};
    for (int rank = 0; rank < size_; ++rank) meeting.ranks.push_back(rank);
    // Each text has its length before it, so that texts can be joined.
    const uint64_t length = value.size();
    std::string text(sizeof(length), '\0');
    std::memcpy(text.data(), &length, sizeof(length));
    text.append(value.begin(), value.end());
    read_entries(folder, combine_texts(*store_, meeting, rank_, std::move(text)));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const auto entry = entries_.find(key);
    return entry == entries_.end() ? store_->get(key) : entry->second;
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    if (const auto others = without_entries(keys); !others.empty()) store_->wait(others, timeout);
  }
  bool check(const std::vector<std::string>& keys) override {
    const auto others = without_entries(keys);
    return others.empty() || store_->check(others);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return store_->compareSet(key, expected, desired);
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }

 private:
  void read_entries(const std::string& folder, const std::string& all) {
    auto from = all.begin();
    for (int rank = 0; rank < size_; ++rank) {
      uint64_t length = 0;
      std::memcpy(&length, &*from, sizeof(length));
      const auto begin = from + sizeof(length);
      from = begin + static_cast<std::ptrdiff_t>(length);
      entries_[concat(folder, rank)].assign(begin, from);
    }
  }
  std::vector<std::string> without_entries(std::vector<std::string> keys) const {
    std::erase_if(keys, [this](const std::string& key) { return entries_.contains(key); });
    return keys;
  }

  const RunStore store_;
  const int rank_, size_;
  std::map<std::string, std::vector<uint8_t>> entries_;
};

constexpr const char* kConnected = "all are connected";

/// Connecting ends at different times on the ranks: a rank that ends early and leaves at once would close a
/// connection that a slower rank has not seen yet, where connecting would fail. So every rank waits for all.
void wait_for_all(c10d::Store& store, int rank, int size) {
  if (size == 1) return;
  if (store.add("connected", 1) == size) store.set(kConnected, std::string());
  const std::vector<uint8_t> failure = store.get(kConnected);
  if (!failure.empty()) throw std::runtime_error(std::string(failure.begin(), failure.end()));
  // Rank 0, whose process may host the store, stays until the others have read this.
  if (rank == 0) {
    store.wait({"all know"});
  } else if (store.add("know", 1) == size - 1) {
    store.set("all know", std::string());
  }
}

/// Makes the ranks in wait_for_all() fail at once, with this cause. Returns the cause of the rank that failed
/// first if that is another one, which may be why this rank's connection was closed; otherwise "".
std::string publish_failure(c10d::Store& store, const std::string& cause) {
  const std::string own = "a peer could not connect: " + cause;
  try {
    const std::vector<uint8_t> first =
        store.compareSet(kConnected, std::vector<uint8_t>(), {own.begin(), own.end()});
    const std::string text(first.begin(), first.end());
    return text == own ? "" : text;
  } catch (const std::exception&) {
    return "";  // the store is lost, which the other ranks notice themselves
  }
}

/// Where gloo listens: the interface of GLOO_SOCKET_IFNAME, or this address.
auto make_device(const std::string& address) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  return interface != nullptr && *interface != '\0'
             ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
             : c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

/// Refuses a transport that libtorch lacks, such as TLS, before a run goes on that was meant to be encrypted.
void check_transport(const std::string& address) {
  const char* transport = std::getenv("GLOO_DEVICE_TRANSPORT");
  if (transport == nullptr || *transport == '\0') return;
  try {
    make_device(address);
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("unsupported gloo device") == std::string_view::npos) throw;
    util::fail(ErrorKind::kUsage,
               "GLOO_DEVICE_TRANSPORT must be a transport that libtorch's gloo was built with, but is ",
               util::shell_word(transport),
               "; unset it, and encrypt the links between hosts by WireGuard (docs/two_hosts.md)");
  }
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_members(const GlooPlace& place, const std::string& prefix,
                                                           int rank, int size) {
  configure_c10d();
  const util::ShortTimeSlices of_threads_of_gloo;
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  options->devices.push_back(make_device(place.address));
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, place.store);
  // Outlives the handler: a peer whose connection is closed then finds the cause in the store.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  try {
    util::make_room_for_files(
        size, concat("rank ", rank, " of a group is to be connected with ", size - 1, " others over gloo"));
    group = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<MeshStore>(store, rank, size),
                                                        rank, size, options);
    wait_for_all(*store, rank, size);
    return group;
  } catch (const std::exception& error) {
    const std::string cause = publish_failure(*store, first_line(error.what()));
    if (!cause.empty()) throw std::runtime_error(cause);
    throw;
  }
}

}  // namespace

GlooPlace gloo_place(const LaunchEnvironment& environment, const CommOptions& options, RunStore store) {
  const std::string address = environment.single_node()
                                  ? std::string("127.0.0.1")
                                  : address_towards(environment.master_addr, environment.master_port);
  check_transport(address);
  return {.store = std::move(store),
          .address = address,
          .timeout = options.timeout(),
          .is_broken_off = environment.is_broken_off};
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const GlooPlace& place, const std::string& prefix,
                                                        int rank, int size) {
  // Each wait while connecting ends by the time-out, except waits for the store's answers.
  constexpr std::chrono::seconds kGrace{5};
  auto group =
      call_within(2 * place.timeout + kGrace, [=] { return connect_members(place, prefix, rank, size); });
  if (!group) throw std::runtime_error("timeout: the run's store, at rank 0, does not answer");
  return *group;
}

}  // namespace fsdp::comm
