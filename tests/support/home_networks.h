#pragma once

// Two hosts in two home networks on this machine, as network namespaces. Each host is behind a router that
// translates addresses and lets in nothing but answers and forwarded ports, and the routers are joined by
// "the internet". Both homes use the same private addresses, as homes do. Needs root, iproute2, nftables.
//
//   host 0 - router 0 (203.0.113.1) - internet - router 1 (203.0.113.2) - host 1

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/run_program.h"

namespace fsdp::testing {

/// Counts the IP packets on an interface of a namespace, in a thread.
class PacketWatch {
 public:
  /// `text`: bytes that seen_text() looks for. `udp_port`: packets from or to it are not counted as others.
  PacketWatch(const std::string& space, const std::string& interface, std::string text, int udp_port = 0)
      : text_(std::move(text)), udp_port_(udp_port) {
    std::thread([&] { open(space, interface); }).join();  // a thread may enter a namespace on its own
    if (socket_ < 0) throw std::runtime_error("cannot watch " + interface + " of " + space);
    thread_ = std::thread([this] { watch(); });
  }
  ~PacketWatch() {
    stop_ = true;
    thread_.join();
    ::close(socket_);
  }
  PacketWatch(const PacketWatch&) = delete;
  PacketWatch& operator=(const PacketWatch&) = delete;

  int64_t bytes() const { return bytes_; }
  /// Number of packets that are neither from nor to the UDP port.
  int64_t other_packets() const { return other_packets_; }
  bool seen_text() const { return seen_text_; }

 private:
  void open(const std::string& space, const std::string& interface) {
    const int names = ::open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
    if (names < 0 || ::setns(names, CLONE_NEWNET) != 0) return;
    ::close(names);
    socket_ = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
    const int buffer_bytes = 64 << 20;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
    sockaddr_ll link{};
    link.sll_family = AF_PACKET;
    link.sll_protocol = htons(ETH_P_ALL);
    link.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    if (link.sll_ifindex == 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&link), sizeof(link)) != 0) {
      ::close(socket_);
      socket_ = -1;
    }
  }

  void watch() {
    std::vector<char> buffer(1 << 17);
    while (!stop_) {
      pollfd entry{socket_, POLLIN, 0};
      ::poll(&entry, 1, 20);
      sockaddr_ll from{};
      socklen_t from_size = sizeof(from);
      ssize_t size;
      while ((size = ::recvfrom(socket_, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&from),
                                &from_size)) > 0) {
        if (from.sll_protocol == htons(ETH_P_IP)) look_at({buffer.data(), static_cast<size_t>(size)});
      }
    }
  }

  void look_at(std::string_view packet) {
    bytes_ += static_cast<int64_t>(packet.size());
    seen_text_ = seen_text_ || packet.find(text_) != std::string_view::npos;
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(packet.at(at)); };
    const size_t header = 4 * (byte(0) & 15);
    const auto port = [&](size_t at) { return byte(header + at) << 8 | byte(header + at + 1); };
    const bool is_expected = byte(9) == IPPROTO_UDP && (port(0) == udp_port_ || port(2) == udp_port_);
    if (!is_expected) ++other_packets_;
  }

  const std::string text_;
  const int udp_port_;
  std::atomic<int64_t> bytes_{0}, other_packets_{0};
  std::atomic<bool> seen_text_{false}, stop_{false};
  int socket_ = -1;
  std::thread thread_;
};

class HomeNetworks {
 public:
  /// Why they cannot be made here; "" when they can.
  static std::string missing() {
    try {
      const HomeNetworks probe;
      return "";
    } catch (const std::runtime_error& error) {
      return std::string("no home networks here: ") + error.what();
    }
  }

  HomeNetworks() {
    try {
      make();
    } catch (...) {
      remove();
      throw;
    }
  }
  ~HomeNetworks() { remove(); }
  HomeNetworks(const HomeNetworks&) = delete;
  HomeNetworks& operator=(const HomeNetworks&) = delete;

  /// The address of a home for the other one.
  static std::string address(int home) { return "203.0.113." + std::to_string(home + 1); }

  /// The command that runs `argv` on a host.
  std::vector<std::string> on(int host, const std::vector<std::string>& argv) const {
    std::vector<std::string> command{"ip",
                                     "netns",
                                     "exec",
                                     home(host),
                                     "unshare",
                                     "--uts",
                                     "sh",
                                     "-c",
                                     "hostname \"$0\" && exec \"$@\"",
                                     "home" + std::to_string(host)};
    command.insert(command.end(), argv.begin(), argv.end());
    return command;
  }

  /// Lets the router of a home forward this UDP port to its host.
  void open_udp_port(int host, int port) const {
    call({"ip", "netns", "exec", router(host), "nft", "add", "rule", "ip", "home", "in", "iifname", "wan",
          "udp", "dport", std::to_string(port), "dnat", "to", kHost});
  }

  /// The namespace of a host, and the one between the routers with its interface towards router 0.
  std::string home(int host) const { return name("home" + std::to_string(host)); }
  std::string internet() const { return name("internet"); }
  static constexpr const char* kTowardsRouter0 = "port0";

 private:
  static constexpr const char* kHost = "192.168.1.2";
  static constexpr const char* kRouter = "192.168.1.1";
  /// A home router: it translates addresses on the way out, and lets in answers and forwarded ports.
  static constexpr const char* kRules = R"(
    table ip home {
      chain out { type nat hook postrouting priority srcnat
        oifname "wan" masquerade
      }
      chain in { type nat hook prerouting priority dstnat
      }
      chain pass { type filter hook forward priority filter; policy drop
        ct state established,related accept
        iifname "lan" accept
        ct status dnat accept
      }
      chain own { type filter hook input priority filter; policy drop
      }
    })";

  std::string name(const std::string& part) const { return "fsdp" + std::to_string(::getpid()) + part; }
  std::string router(int host) const { return name("router" + std::to_string(host)); }
  std::vector<std::string> spaces() const { return {home(0), router(0), internet(), router(1), home(1)}; }

  static void call(const std::vector<std::string>& command, const std::string& input = "") {
    const ProgramResult result = run(command, {.stdin_text = input});
    if (result.exit_code == 0) return;
    std::string text;
    for (const std::string& word : command) text += word + " ";
    throw std::runtime_error("\"" + text + "\" says: " + result.err);
  }
  static void ip(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ip");
    call(arguments);
  }
  static void link(const std::string& a, const std::string& of_a, const std::string& b,
                   const std::string& of_b) {
    ip({"-n", a, "link", "add", of_a, "type", "veth", "peer", "name", of_b, "netns", b});
    ip({"-n", a, "link", "set", of_a, "up"});
    ip({"-n", b, "link", "set", of_b, "up"});
  }

  void make() {
    for (const std::string& space : spaces()) {
      ip({"netns", "add", space});
      ip({"-n", space, "link", "set", "lo", "up"});
    }
    ip({"-n", internet(), "link", "add", "bridge", "type", "bridge"});
    ip({"-n", internet(), "link", "set", "bridge", "up"});
    for (int host : {0, 1}) {
      const std::string port = "port" + std::to_string(host);
      link(home(host), "eth0", router(host), "lan");
      link(router(host), "wan", internet(), port);
      ip({"-n", internet(), "link", "set", port, "master", "bridge"});
      ip({"-n", home(host), "addr", "add", std::string(kHost) + "/24", "dev", "eth0"});
      ip({"-n", router(host), "addr", "add", std::string(kRouter) + "/24", "dev", "lan"});
      ip({"-n", home(host), "route", "add", "default", "via", kRouter});
      ip({"-n", router(host), "addr", "add", address(host) + "/24", "dev", "wan"});
      call({"ip", "netns", "exec", router(host), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"});
      call({"ip", "netns", "exec", router(host), "nft", "-f", "-"}, kRules);
    }
  }

  void remove() const {
    for (const std::string& space : spaces()) run({"ip", "netns", "delete", space});
  }
};

}  // namespace fsdp::testing
