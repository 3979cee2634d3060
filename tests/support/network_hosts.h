#pragma once

// Hosts with addresses and names of their own on this machine: network namespaces, joined by a hub in this
// process that can delay what passes and cut a host off. Needs the right to make namespaces and iproute2.
//
//   if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
//   NetworkHosts hosts(2);
//   RunningProgram program(hosts.on(1, {"ping", hosts.address(0)}));

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/packet_hub.h"
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
  void delay(std::chrono::milliseconds time) { hub_.delay(time); }
  /// Nothing reaches the host or comes from it any more.
  void cut_off(int host) { hub_.cut_off(host); }

 private:
  std::string space(int host) const { return "fsdp" + std::to_string(id_) + "h" + std::to_string(host); }
  std::string hub_space() const { return "fsdp" + std::to_string(id_) + "hub"; }

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
      ip({"-n", space(host), "link", "add", "eth0", "type", "veth", "peer", "name",
          PacketHub::port_name(host), "netns", hub_space()});
      ip({"-n", space(host), "addr", "add", address(host) + "/24", "dev", "eth0"});
      ip({"-n", space(host), "link", "set", "eth0", "up"});
      ip({"-n", space(host), "link", "set", "lo", "up"});
      ip({"-n", hub_space(), "link", "set", PacketHub::port_name(host), "up"});
    }
    std::thread([this] {
      open_ports();
    }).join();  // a thread may enter a namespace that the others are not in
    if (!is_open_) throw std::runtime_error("no right to enter one");
    forwarding_ = std::thread([this] { hub_.run(); });
  }

  void remove() {
    hub_.stop();
    if (forwarding_.joinable()) forwarding_.join();
    if (id_ == 0) return;
    for (int host = 0; host < count_; ++host) run({"ip", "netns", "delete", space(host)});
    run({"ip", "netns", "delete", hub_space()});
  }

  void open_ports() {
    const int space = ::open(("/run/netns/" + hub_space()).c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) return;
    ::close(space);
    try {
      hub_.open(count_);
      is_open_ = true;
    } catch (const std::runtime_error&) {  // make() reports it
    }
  }

  const int count_;
  int id_ = 0;
  PacketHub hub_;
  bool is_open_ = false;
  std::thread forwarding_;
};

}  // namespace fsdp::testing
