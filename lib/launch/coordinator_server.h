#pragma once

// The network side of the coordinator: nodes connect, prove that they belong to the run, and send heartbeats.
//
// Anybody who reaches the port can connect. A connection whose first line is not a join message with the run's
// token, or does not arrive within seconds, is closed without any effect on the run.

#include <poll.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "launch/coordinator.h"
#include "launch/descriptor.h"
#include "launch/endpoint.h"

namespace fsdp::launch {

class CoordinatorServer {
 public:
  /// For the host of a run with these options. No token is required if `token` is empty.
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
    bool has_joined = false;
    bool closing = false;  ///< closed once everything is sent
  };

  void accept_all();
  void serve(int id, Peer& peer);
  void handle(int id, Peer& peer, const std::string& line);
  void join(int id, Peer& peer, const Message& message);
  void send_heartbeats();
  void drop_silent(int id, Peer& peer);
  void tell_if_lost(int id, Peer& peer);

  Descriptor listener_;
  const std::string token_;
  const double heartbeat_seconds_;
  const double silence_seconds_;  ///< after which a node is lost
  const RunTerms terms_;
  std::map<int, Peer> peers_;
  int next_id_ = 0;
  Clock::time_point next_heartbeat_;
  mutable Clock::time_point over_since_{};
  bool warned_of_strangers_ = false;
  Coordinator coordinator_;
};

}  // namespace fsdp::launch
