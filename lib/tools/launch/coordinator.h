#pragma once

// Decides for all nodes of a run which of them take part in a round, when it starts and stops, and whether there
// is another one. The coordinator runs in the launcher of one node, the host. It uses neither sockets nor a
// clock: coordinator_server.h passes it the nodes' messages and sends its orders.
//
//   gathering -- enough nodes --> running -- all workers finished --> over
//       ^                           | a worker failed, a node was lost, left or joined
//       +--- restarts are left --- stopping --- none is left ---> over
//
// With Backend::kStatic nodes keep their given ranks, and all of them must join. With kC10d the host has node
// rank 0 and the others follow in the order of joining; a round starts when the maximum of nodes have joined, or
// at the end of the last call after the minimum have. Nodes beyond the maximum wait as spares.
//
// With replicas (RunTerms::replica_size) there is one round. Workers, and whole nodes, are lost and replaced in
// it as membership.h decides; another node with as many workers may take the place of a lost one.

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
    double fence_seconds = 0;        ///< after which a node that is out of reach has ended its workers
    std::string master_addr;         ///< the host's address, for rank 0's store
    std::function<int()> free_port;  ///< on the host, for each round
    /// Sends an order (start, stop, table, finish, note), the same to all, to the nodes that joined as these.
    std::function<void(const std::vector<int>& ids, const Message& order)> send;
  };

  Coordinator(Settings settings, Time now);

  /// Adds a node; returns a sentence why it is refused, or "".
  std::string join(int id, const NodeInfo& node, Time now);
  void worker_ended(int id, const WorkerEnd& end, Time now);
  struct Said {
    int rank = 0;
    int incarnation = 0;
    WorkerReport report;
  };
  /// With replicas: a worker of the node has said something.
  void worker_said(int id, const Said& said, Time now);
  /// All workers of the node have ended. Ends of ranks that are not the node's are ignored.
  void round_ended(int id, const std::vector<WorkerEnd>& ends, Time now);
  /// The node was told to stop by this signal.
  void leave(int id, int signal, Time now);
  /// The node does not answer any more, for the reason `why`; `is_gone`: its launcher has ended for certain.
  void lost(int id, const std::string& why, bool is_gone, Time now);

  /// Takes the actions that are due.
  void tick(Time now);
  /// When tick() must be called at the latest.
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
    std::map<int, int> order_of_ends{};  ///< rank -> position of its end among those reported
  };

  void gather(Time now);
  void start_round(const std::vector<int>& ids, Time now);
  void start_node(int id, const NodePlacement& placement);
  void start_membership(Time now);
  void order(int replica, WorkerOrder::Kind kind, int incarnation, const Message& line = {});
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
  bool is_in_round() const { return phase_ == Phase::kRunning || phase_ == Phase::kStopping; }
  bool is_elastic() const { return settings_.terms.nodes.min < settings_.terms.nodes.max; }

  const Settings settings_;
  Phase phase_ = Phase::kGathering;
  // Nothing that happens to one node of ten thousand looks at all of them, unless all are to be told of it.
  std::map<int, Node> nodes_;             ///< by id, ascending in the order of joining
  std::map<int, int> ids_by_node_rank_;   ///< with Backend::kStatic
  std::map<int, int> ids_by_first_rank_;  ///< of the nodes in the round
  int leaving_ = 0;                       ///< nodes that are told to stop
  int running_ = 0;                       ///< nodes in the round whose part of it has not ended
  Time gathering_since_;
  std::optional<Time> last_call_;
  bool said_who_is_missing_ = false;
  int restarts_ = 0;
  int events_ = 0;                        ///< number of ends reported
  std::vector<WorkerEnd> ends_;           ///< of the present round
  std::vector<SilentNode> silent_;        ///< lost in it before they reported their ends
  std::string lost_cause_;                ///< the first node lost in it
  std::string change_;                    ///< why it stops, unless for a failure
  NodePlacement placement_;               ///< of it, as of its last node
  std::optional<Membership> membership_;  ///< with replicas
  struct Vacancy {
    int workers;
    int place;
  };
  std::map<int, Vacancy> vacancies_;  ///< first rank -> of a node that was lost
  std::optional<Verdict> verdict_;    ///< of membership_
};

}  // namespace fsdp::launch
