#pragma once

// Decides for all nodes of a run: who takes part in a round, when it starts, when it stops, whether there is
// another one. It runs in the launcher of one node, the host, and knows no sockets and no clock of its own:
// coordinator_server.h brings it what the nodes say and carries its orders.
//
//   gathering -- enough nodes --> running -- all workers finished --> over
//       ^                           | a worker failed, a node was lost, left or came
//       +--- restarts are left --- stopping --- none is left ---> over
//
// With Backend::kStatic nodes have the ranks that they were given, and all of them must come. With kC10d the
// host has node rank 0 and the others follow in the order of joining; a round starts with the most nodes, or,
// a last call after the fewest are there, with those that are. Nodes beyond the most wait as spares.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/message.h"
#include "launch/verdict.h"
#include "launch/wait_table.h"

namespace fsdp::launch {

class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  struct Settings {
    RunTerms terms;
    double join_timeout_seconds = 600;
    double last_call_timeout_seconds = 30;
    std::string master_addr;         ///< the host's, for rank 0's store
    std::function<int()> free_port;  ///< on the host, for each round
    /// Carries an order (start, stop, table, finish, note) to the node that joined as `id`.
    std::function<void(int id, const Message& order)> send;
  };

  Coordinator(Settings settings, Time now);

  /// A node wants to take part; a sentence why not, or "".
  std::string join(int id, const NodeInfo& node, Time now);
  void worker_ended(int id, WorkerEnd end, Time now);
  /// All workers of the node have ended. Ends of other ranks than the node's are left out.
  void round_ended(int id, const std::vector<WorkerEnd>& ends, Time now);
  /// The node was told to stop by this signal.
  void leave(int id, int signal, Time now);
  /// Nothing is heard of the node any more, and why.
  void lost(int id, const std::string& why, Time now);

  /// Does what is due by now.
  void tick(Time now);
  /// When tick() has something to do at the latest.
  std::optional<Time> next_due() const;

  bool is_over() const { return phase_ == Phase::kOver; }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kOver };

  struct Node {
    NodeInfo info;
    Time joined_at;
    int place = -1;      ///< node rank in the present or last round
    int first_rank = 0;  ///< of its workers in it
    bool in_round = false;
    bool has_ended = false;              ///< its part of the round
    int leaving = 0;                     ///< told to stop by this signal
    std::map<int, int> order_of_ends{};  ///< rank -> when its end was heard of
  };

  void gather(Time now);
  void start_round(const std::vector<int>& ids);
  void stop_round(int except, const std::string& why);
  void conclude_if_ended(Time now);
  void conclude(Time now);
  void send_table();
  std::optional<WorkerEnd> ended_by_a_node_that_leaves() const;
  void finish(const Verdict& verdict);
  std::vector<int> candidates() const;
  std::string missing(double waited_seconds) const;
  std::string name_of_node(const Node& node) const;
  bool is_in_round() const { return phase_ == Phase::kRunning || phase_ == Phase::kStopping; }
  bool is_elastic() const { return settings_.terms.nodes.min < settings_.terms.nodes.max; }

  const Settings settings_;
  Phase phase_ = Phase::kGathering;
  std::map<int, Node> nodes_;  ///< by id, which rises with the order of joining
  Time gathering_since_;
  std::optional<Time> last_call_;
  bool said_who_is_missing_ = false;
  int restarts_ = 0;
  int events_ = 0;                  ///< ends of workers heard of
  std::vector<WorkerEnd> ends_;     ///< of the present round
  std::vector<SilentNode> silent_;  ///< lost in it before they told their ends
  std::string lost_cause_;          ///< the first node lost in it
  std::string change_;              ///< why it stops, if that is no failure
};

}  // namespace fsdp::launch
