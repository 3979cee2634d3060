#pragma once

// Decides which nodes of a run take part in a round, when a round starts and stops, and whether another round
// follows. The coordinator runs in the launcher of one node, the host. It uses neither sockets nor a clock:
// coordinator_server.h passes messages of nodes to it and sends its orders.
//
//   gathering -- enough nodes --> running -- all workers finished --> over
//       ^                           | a worker failed, a node was lost, left or joined
//       +--- restarts are left --- stopping --- none is left ---> over
//
// With RendezvousKind::kStatic nodes keep their given ranks, and all must join. With kC10d the host has node
// rank 0, and the other nodes follow in the order of joining. A round starts when the maximum number of nodes
// has joined, or at the end of the last call after the minimum has joined. Nodes beyond the maximum wait as
// spares.
//
// With replicas (RunTerms::replica_size) there is one round, in which workers and whole nodes are lost and
// replaced as membership.h decides. Another node with as many workers may replace a lost node.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/membership.h"
#include "tools/launch/message.h"
#include "tools/launch/rendezvous.h"
#include "tools/launch/verdict.h"
#include "tools/launch/wait_table.h"

namespace fsdp::launch {

class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  struct Settings {
    RunTerms terms;
    double join_timeout_seconds = 600;
    double last_call_timeout_seconds = 30;
    double stop_timeout_seconds = 30;
    double fence_seconds = 0;        ///< time after which an unreachable node has ended its workers
    std::string master_addr;         ///< the host's address, where rank 0's store listens
    std::function<int()> free_port;  ///< returns a free port of the host, for each round
    /// Sends the same order (start, stop, table, finish, note) to the nodes with these ids.
    std::function<void(const std::vector<int>& ids, const Message& order)> send;
  };

  Coordinator(Settings settings, Time now);

  /// Adds a node. Returns a sentence that explains why the node is refused, or "".
  std::string join(int id, const NodeInfo& node, Time now);
  void worker_ended(int id, const WorkerEnd& end, Time now);
  struct Said {
    int rank = 0;
    int incarnation = 0;
    WorkerReport report;
  };
  /// Handles a report of one of the node's workers. Only with replicas.
  void worker_said(int id, const Said& said, Time now);
  /// Handles the end of all workers of the node. Ignores ends of ranks that are not the node's.
  void round_ended(int id, const std::vector<WorkerEnd>& ends, Time now);
  /// Handles a signal that told the node to stop.
  void leave(int id, int signal, Time now);
  /// Handles the loss of a node that no longer answers. `why`: the reason. `is_gone`: its launcher has
  /// certainly ended.
  void lost(int id, const std::string& why, bool is_gone, Time now);

  /// Takes all actions that are due.
  void tick(Time now);
  /// The latest time for the next call of tick().
  std::optional<Time> next_due() const;

  bool is_over() const { return phase_ == RunPhase::kOver; }

 private:
  enum class RunPhase { kGathering, kRunning, kStopping, kOver };

  struct Node {
    NodeInfo info;
    Time joined_at;
    int place = -1;      ///< node rank in the current or last round
    int first_rank = 0;  ///< rank of its first worker in that round
    bool in_round = false;
    bool has_ended = false;              ///< whether all its workers of the round have ended
    int leaving = 0;                     ///< signal that told the node to stop; 0: none
    std::map<int, int> order_of_ends{};  ///< rank -> position of its end among all reported ends
  };

  void gather(Time now);
  void start_round(const std::vector<int>& ids, Time now);
  void start_node(int id, const NodePlacement& placement);
  void start_membership(Time now);
  void order(int replica, WorkerOrder::OrderKind kind, int incarnation, const Message& line = {});
  void fill_vacancies(Time now);
  bool replicas_change() const;
  bool has_rank(const Node& node, int rank) const;
  std::map<int, Node>::iterator node_of(int rank);
  std::map<int, Node>::iterator erase(std::map<int, Node>::iterator node);
  template <typename Condition>
  std::vector<int> ids_of(const Condition& holds) const;
  int present() const { return static_cast<int>(nodes_.size()) - leaving_; }
  void stop_round(int except, const StopReason& why);
  void conclude_if_ended(Time now);
  void conclude(Time now);
  void send_table();
  std::optional<WorkerEnd> ended_by_a_node_that_leaves() const;
  void finish(const Verdict& verdict);
  std::vector<int> candidates() const;
  std::string missing(double waited_seconds) const;
  std::string name_of_node(const Node& node) const;
  bool is_in_round() const { return phase_ == RunPhase::kRunning || phase_ == RunPhase::kStopping; }
  bool is_elastic() const { return settings_.terms.nodes.min < settings_.terms.nodes.max; }

  const Settings settings_;
  RunPhase phase_ = RunPhase::kGathering;
  // A run may have ten thousand nodes: events of one node must not loop over all nodes, unless all must be
  // told.
  std::map<int, Node> nodes_;             ///< keyed by id, ascending in the order of joining
  std::map<int, int> ids_by_node_rank_;   ///< only with RendezvousKind::kStatic
  std::map<int, int> ids_by_first_rank_;  ///< nodes in the round
  int leaving_ = 0;                       ///< number of nodes that were told to stop
  int running_ = 0;                       ///< number of nodes in the round with workers that have not ended
  Time gathering_since_;
  std::optional<Time> last_call_;
  bool said_who_is_missing_ = false;
  int restarts_ = 0;
  int events_ = 0;                        ///< number of reported ends
  std::vector<WorkerEnd> ends_;           ///< ends in the current round
  std::vector<SilentNode> silent_;        ///< nodes lost in the round before they reported ends
  std::string lost_cause_;                ///< describes the first node lost in the round
  std::string change_;                    ///< why the round stops, unless for a failure
  NodePlacement placement_;               ///< placement of the round's last node
  std::optional<Membership> membership_;  ///< only with replicas
  struct Vacancy {
    int workers;
    int place;
  };
  std::map<int, Vacancy> vacancies_;  ///< first rank of a lost node -> its vacancy
  std::optional<Verdict> verdict_;    ///< verdict of membership_
};

}  // namespace fsdp::launch
