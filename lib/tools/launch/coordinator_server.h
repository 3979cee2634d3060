#pragma once

// The network side of the coordinator: nodes connect, prove that they belong to the run, and send heartbeats.
//
// Anybody who reaches the port can connect. A connection that does not prove within seconds that it knows the run's
// token (token.h) is closed without any effect on the run, and without an answer; a warning says from where it came and
// what it sent. When there are too many of them, the oldest make room.
//
// What a step costs grows with the nodes that have sent something, or are sent something, and once per heartbeat with
// all of them: runs may have ten thousand nodes.

#include <poll.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/coordinator.h"
#include "tools/launch/descriptor.h"
#include "tools/launch/endpoint.h"
#include "tools/launch/poller.h"
#include "tools/launch/token.h"

namespace fsdp::launch {

class CoordinatorServer {
 public:
  /// For the host of a run with these options. Throws Error(kUsage) when this process may not have a connection open to
  /// each node.
  CoordinatorServer(Descriptor listener, const LaunchOptions& options, std::string token,
                    double heartbeat_seconds);

  void add_poll_entries(std::vector<pollfd>& entries) const;
  void step();
  int milliseconds_to_wait() const;

  /// The run is over, and every node has been notified or had seconds to read it.
  bool is_done() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    LineSocket socket;
    std::string address;
    Clock::time_point connected_at, heard_at;
    Nonces nonces{};
    bool has_joined = false;
    bool is_known = false;   ///< it has asked to join, or was reported as a stranger
    bool closing = false;    ///< closed once everything is sent
    bool touched = false;    ///< in touched_
    bool congested = false;  ///< watched for room to send
  };

  void accept_all();
  bool drop_a_stranger();
  void serve(int id);
  void handle(int id, Peer& peer, const std::string& line);
  void challenge(Peer& peer, const Message& message);
  void join(int id, Peer& peer, const Message& message);
  void send(int id, std::string_view line);
  void touch(int id, Peer& peer);
  void look_at_the_clock();
  void drop_if_silent(int id, Peer& peer);
  void settle();
  void tell_if_lost(int id, Peer& peer);
  void report_stranger(Peer& peer, const std::string& what);
  void warn(const std::string& message);

  Descriptor listener_;
  const std::string token_;
  const double heartbeat_seconds_;
  const double silence_seconds_;  ///< after which a node is lost
  const RunTerms terms_;
  const std::string beat_;  ///< a line
  Poller poller_;
  std::map<int, Peer> peers_;
  std::vector<int> touched_;  ///< peers that were heard or sent something in this step
  int joined_ = 0;            ///< peers
  int next_id_ = 0;
  bool is_accepting_ = true;
  bool warned_of_files_ = false;
  Clock::time_point next_heartbeat_;
  mutable Clock::time_point over_since_{};
  int refused_ = 0;  ///< strangers and nodes
  Coordinator coordinator_;
};

}  // namespace fsdp::launch
