#pragma once

// The network side of the coordinator. Nodes connect, prove that they belong to the run, and send heartbeats.
//
// Anybody who reaches the port can connect. A connection that does not prove within seconds that it knows the
// run's token (token.h) is closed without an answer and without any effect on the run. A warning names its
// address and what it sent. If there are too many such connections, the oldest are closed.
//
// Runs may have ten thousand nodes: the cost of step() grows with the nodes that have sent or are sent
// something, and only once per heartbeat with all nodes.

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
  /// Makes the server on the host of a run. Throws Error(kUsage) if this process may not open a connection to
  /// each node.
  CoordinatorServer(Descriptor listener, const LaunchOptions& options, std::string token,
                    double heartbeat_seconds);

  void add_poll_entries(std::vector<pollfd>& entries) const;
  void step();
  int milliseconds_to_wait() const;

  /// Whether the run is over and every node has been notified or had seconds to read it.
  bool is_done() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    LineSocket socket;
    std::string address;
    Clock::time_point connected_at, heard_at;
    Nonces nonces{};
    bool has_joined = false;
    bool is_known = false;   ///< the peer has asked to join, or was reported as a stranger
    bool closing = false;    ///< close the connection once everything is sent
    bool touched = false;    ///< listed in touched_
    bool congested = false;  ///< the poller watches for room to send
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
  const double silence_seconds_;  ///< time without a message after which a node is lost
  const RunTerms terms_;
  const std::string beat_;  ///< heartbeat as a line
  Poller poller_;
  std::map<int, Peer> peers_;
  std::vector<int> touched_;  ///< peers that sent or were sent something in this step
  int joined_ = 0;            ///< number of peers that have joined
  int next_id_ = 0;
  bool is_accepting_ = true;
  bool warned_of_files_ = false;
  Clock::time_point next_heartbeat_;
  mutable Clock::time_point over_since_{};
  int refused_ = 0;  ///< number of refused strangers and nodes
  Coordinator coordinator_;
};

}  // namespace fsdp::launch
