#pragma once

// The coordinator's side of the network: nodes connect, prove that they belong to the run, and send
// heartbeats.
//
// Whoever reaches the port can talk to it. A connection whose first line is not a join message with the run's
// token, or whose line does not come within seconds, is closed, and has no influence on the run.

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
  struct Settings {
    std::string token;  ///< empty: none is asked for
    double heartbeat_seconds = 1;
    int heartbeats_missed = 10;  ///< by a node that is lost
  };

  CoordinatorServer(Descriptor listener, Settings settings, Coordinator::Settings coordinator);

  void add_poll_entries(std::vector<pollfd>& entries) const;
  void step();
  int milliseconds_to_wait() const;

  /// The run is over and every node has been told, or has had seconds to take it.
  bool is_done() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    LineSocket socket;
    std::string address;
    Clock::time_point connected_at, heard_at;
    bool has_joined = false;
    bool closing = false;  ///< once all is sent
  };

  void accept_all();
  void serve(int id, Peer& peer);
  void handle(int id, Peer& peer, const std::string& line);
  void join(int id, Peer& peer, const Message& message);
  void send_heartbeats();
  void drop_silent(int id, Peer& peer);
  void tell_if_lost(int id, Peer& peer);
  double seconds_of_silence_allowed() const;

  Descriptor listener_;
  const Settings settings_;
  const RunTerms terms_;
  std::map<int, Peer> peers_;
  int next_id_ = 0;
  Clock::time_point next_heartbeat_;
  mutable Clock::time_point over_since_{};
  bool warned_of_strangers_ = false;
  Coordinator coordinator_;
};

}  // namespace fsdp::launch
