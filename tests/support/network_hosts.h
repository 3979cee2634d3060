#pragma once

// Hosts with addresses and names of their own on this machine: network namespaces, joined by a hub in this
// process that can delay what passes and cut a host off. Needs the right to make namespaces and iproute2.
//
//   if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
//   NetworkHosts hosts(2);
//   RunningProgram program(hosts.on(1, {"ping", hosts.address(0)}));

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/run_program.h"

namespace fsdp::testing {

class NetworkHosts {
 public:
  /// Why hosts cannot be made here; "" when they can.
  static std::string missing() {
    try {
      const NetworkHosts probe(1);
      return "";
    } catch (const std::runtime_error& error) {
      return std::string("no network namespaces here: ") + error.what();
    }
  }

  explicit NetworkHosts(int count) : count_(count) {
    try {
      make();
    } catch (...) {
      remove();
      throw;
    }
  }
  ~NetworkHosts() { remove(); }
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  static std::string name(int host) { return "host" + std::to_string(host); }

  /// The command that runs `argv` on a host, in the same process.
  std::vector<std::string> on(int host, const std::vector<std::string>& argv) const {
    std::vector<std::string> command{"ip",        "netns",   "exec",
                                     space(host), "unshare", "--uts",
                                     "sh",        "-c",      "hostname \"$0\" && exec \"$@\"",
                                     name(host)};
    command.insert(command.end(), argv.begin(), argv.end());
    return command;
  }

  /// Every packet takes that much longer from now on.
  void delay(std::chrono::milliseconds time) { delay_ms_ = static_cast<int>(time.count()); }
  /// Nothing reaches the host or comes from it any more.
  void cut_off(int host) { cut_off_ = host; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Packet {
    Clock::time_point due;
    int from;
    std::string bytes;
  };

  std::string space(int host) const { return "fsdp" + std::to_string(id_) + "h" + std::to_string(host); }
  std::string hub_space() const { return "fsdp" + std::to_string(id_) + "hub"; }
  static std::string port(int host) { return "port" + std::to_string(host); }

  static void ip(std::vector<std::string> arguments) {
    std::string text = "ip";
    for (const std::string& argument : arguments) text += " " + argument;
    arguments.insert(arguments.begin(), "ip");
    const ProgramResult result = run(arguments);
    if (result.exit_code != 0) throw std::runtime_error("\"" + text + "\" says: " + result.err);
  }

  void make() {
    static std::atomic<int> made{0};
    id_ = static_cast<int>(::getpid()) * 100 + made++ % 100;
    ip({"netns", "add", hub_space()});
    for (int host = 0; host < count_; ++host) {
      ip({"netns", "add", space(host)});
      ip({"-n", space(host), "link", "add", "eth0", "type", "veth", "peer", "name", port(host), "netns",
          hub_space()});
      ip({"-n", space(host), "addr", "add", address(host) + "/24", "dev", "eth0"});
      ip({"-n", space(host), "link", "set", "eth0", "up"});
      ip({"-n", space(host), "link", "set", "lo", "up"});
      ip({"-n", hub_space(), "link", "set", port(host), "up"});
    }
    std::thread([this] {
      open_ports();
    }).join();  // a thread may enter a namespace that the others are not in
    if (static_cast<int>(ports_.size()) != count_) throw std::runtime_error("no right to enter one");
    hub_ = std::thread([this] { forward(); });
  }

  void remove() {
    stop_ = true;
    if (hub_.joinable()) hub_.join();
    for (int fd : ports_) ::close(fd);
    if (id_ == 0) return;
    for (int host = 0; host < count_; ++host) run({"ip", "netns", "delete", space(host)});
    run({"ip", "netns", "delete", hub_space()});
  }

  void open_ports() {
    const int space = ::open(("/run/netns/" + hub_space()).c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) return;
    ::close(space);
    for (int host = 0; host < count_; ++host) {
      const int fd = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
      const int yes = 1, buffer_bytes = 8 << 20;
      // Packets come with the header that says what the sender left to hardware: checksums, cutting into
      // frames.
      ::setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof(yes));
      ::setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes));
      ::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
      sockaddr_ll link{};
      link.sll_family = AF_PACKET;
      link.sll_protocol = htons(ETH_P_ALL);
      link.sll_ifindex = static_cast<int>(::if_nametoindex(port(host).c_str()));
      ::bind(fd, reinterpret_cast<sockaddr*>(&link), sizeof(link));
      ports_.push_back(fd);
    }
  }

  void forward() {
    std::deque<Packet> queue;  // in the order of coming, which is near enough to that of being due
    std::vector<char> buffer(1 << 17);
    while (!stop_) {
      std::vector<pollfd> entries;
      for (int fd : ports_) entries.push_back({fd, POLLIN, 0});
      constexpr int kIdleMs = 20;
      ::poll(entries.data(), entries.size(), queue.empty() ? kIdleMs : 1);
      for (int from = 0; from < static_cast<int>(ports_.size()); ++from) {
        ssize_t size;
        while ((size = ::recv(ports_[static_cast<size_t>(from)], buffer.data(), buffer.size(), 0)) > 0) {
          if (from == cut_off_) continue;
          queue.push_back({Clock::now() + std::chrono::milliseconds(delay_ms_), from,
                           std::string(buffer.data(), static_cast<size_t>(size))});
        }
      }
      for (; !queue.empty() && queue.front().due <= Clock::now(); queue.pop_front()) {
        for (int to = 0; to < static_cast<int>(ports_.size()); ++to) {
          if (to == queue.front().from || to == cut_off_) continue;
          const std::string& bytes = queue.front().bytes;
          [[maybe_unused]] const ssize_t sent =
              ::send(ports_[static_cast<size_t>(to)], bytes.data(), bytes.size(), 0);
        }
      }
    }
  }

  const int count_;
  int id_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> delay_ms_{0}, cut_off_{-1};
  std::vector<int> ports_;
  std::thread hub_;
};

}  // namespace fsdp::testing
