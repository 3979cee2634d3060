#pragma once

// PacketHub: joins network interfaces in place of a bridge, and can pass packets on later or cut an interface
// off. Its thread must be in the network namespace of the interfaces. Needs the right to open packet sockets.

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

class PacketHub {
 public:
  static std::string port_name(int port) { return "port" + std::to_string(port); }

  PacketHub() = default;
  ~PacketHub() {
    for (int fd : ports_) ::close(fd);
  }
  PacketHub(const PacketHub&) = delete;
  PacketHub& operator=(const PacketHub&) = delete;

  /// Opens the interfaces port0, port1, ... of the calling thread's namespace.
  void open(int count) {
    for (int port = 0; port < count; ++port) ports_.push_back(open_port(port_name(port)));
  }

  /// Every packet takes that much longer from now on.
  void delay(std::chrono::milliseconds time) { delay_ms_ = static_cast<int>(time.count()); }
  /// Nothing reaches this port or comes from it any more.
  void cut_off(int port) { cut_off_ = port; }

  /// Passes packets on until stop() is called, by another thread.
  void run() {
    std::vector<char> buffer(1 << 17);
    while (!stop_) {
      wait();
      for (int from = 0; from < static_cast<int>(ports_.size()); ++from) receive(from, buffer);
      while (!queue_.empty() && queue_.front().due <= Clock::now()) {
        pass_on(queue_.front());
        spare_.push_back(std::move(queue_.front().bytes));
        queue_.pop_front();
      }
    }
  }
  void stop() { stop_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Packet {
    Clock::time_point due;
    int from;
    std::string bytes;
  };

  static int open_port(const std::string& name) {
    const int fd = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
    if (fd < 0) throw std::runtime_error(std::string("no packet socket: ") + std::strerror(errno));
    const int yes = 1, buffer_bytes = 8 << 20;
    // Packets come with the header that says what the sender left to hardware: checksums, cutting into
    // frames.
    ::setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof(yes));
    ::setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes));
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
    sockaddr_ll link{};
    link.sll_family = AF_PACKET;
    link.sll_protocol = htons(ETH_P_ALL);
    link.sll_ifindex = static_cast<int>(::if_nametoindex(name.c_str()));
    if (link.sll_ifindex == 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&link), sizeof(link)) != 0) {
      ::close(fd);
      throw std::runtime_error("no interface " + name);
    }
    return fd;
  }

  /// Waits until a packet comes or is due.
  void wait() {
    std::vector<pollfd> entries;
    for (int fd : ports_) entries.push_back({fd, POLLIN, 0});
    std::chrono::nanoseconds left = std::chrono::milliseconds(20);
    if (!queue_.empty()) {
      left = std::clamp(std::chrono::nanoseconds(queue_.front().due - Clock::now()),
                        std::chrono::nanoseconds(0), left);
    }
    const timespec time{.tv_sec = 0, .tv_nsec = left.count()};
    ::ppoll(entries.data(), entries.size(), &time, nullptr);
  }

  void receive(int from, std::vector<char>& buffer) {
    for (ssize_t size; (size = ::recv(port(from), buffer.data(), buffer.size(), 0)) > 0;) {
      if (from == cut_off_) continue;
      std::string bytes;
      if (!spare_.empty()) {
        bytes = std::move(spare_.back());
        spare_.pop_back();
      }
      bytes.assign(buffer.data(), static_cast<size_t>(size));
      queue_.push_back({Clock::now() + std::chrono::milliseconds(delay_ms_), from, std::move(bytes)});
    }
  }

  void pass_on(const Packet& packet) {
    for (int to = 0; to < static_cast<int>(ports_.size()); ++to) {
      if (to == packet.from || to == cut_off_) continue;
      // TCP sends again what finds no room.
      [[maybe_unused]] const ssize_t sent = ::send(port(to), packet.bytes.data(), packet.bytes.size(), 0);
    }
  }

  int port(int number) const { return ports_[static_cast<size_t>(number)]; }

  std::vector<int> ports_;
  std::deque<Packet> queue_;        ///< in the order of coming, which is near enough to that of being due
  std::vector<std::string> spare_;  ///< memory of packets passed on; fresh memory costs page faults
  std::atomic<bool> stop_{false};
  std::atomic<int> delay_ms_{0}, cut_off_{-1};
};

}  // namespace fsdp::testing
