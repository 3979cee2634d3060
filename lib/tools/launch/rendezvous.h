#pragma once

// The agreement of a run's nodes on when to start workers and with which ranks, when to stop them, and how
// the run ended.

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/message.h"
#include "tools/launch/options.h"
#include "tools/launch/verdict.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {

/// Why the workers of a round must stop.
struct StopReason {
  std::string text;
  bool is_failure = true;  ///< false: a request from outside, or the nodes of the run change
};

/// A node's side of the rendezvous, called by the supervisor. Nothing here blocks.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// The sockets to poll, the work after poll(), and the milliseconds until work is due without an event (-1:
  /// never).
  virtual void add_poll_entries(std::vector<pollfd>&) {}
  virtual void step() {}
  virtual int milliseconds_to_wait() const { return -1; }

  /// The places of this node's workers in the round. Returned once per round.
  virtual std::optional<NodePlacement> take_start() = 0;
  /// Why the workers of the current round must stop, if another node gave a reason.
  virtual std::optional<StopReason> stop_reason() const { return std::nullopt; }
  /// Whether other nodes continue without this node. Its workers must be killed then, because a worker that
  /// saves or stops the run could still reach the other nodes' workers.
  virtual bool is_cut_off() const { return false; }
  /// The next order for single workers, only with replicas, which have one round.
  virtual std::optional<WorkerOrder> take_order() { return std::nullopt; }
  /// Whether the round ends when no worker of this node runs.
  virtual bool may_end_round() const { return true; }
  /// How the run ended. Nothing until that is known and no worker runs.
  virtual const std::optional<Verdict>& outcome() const = 0;

  /// Handles the end of a worker of this node, whose output may still be incomplete.
  virtual void worker_ended(const WorkerEnd&) {}
  /// Handles a report that a worker of this node sent over its channel.
  virtual void worker_said(int /*rank*/, int /*incarnation*/, const WorkerReport&) {}
  /// Handles the complete ends of all workers of this node. After a failure it logs the wait table, at once
  /// or when the ends of the other nodes' workers are known.
  virtual void round_ended(const std::vector<WorkerEnd>& ends) = 0;
  /// Handles a signal that told this node to stop. The node takes part in no restart.
  virtual void leave(int signal) = 0;
};

/// Makes the rendezvous of a run of one or several nodes. Throws Error(kUsage) if the endpoint cannot be
/// used.
std::unique_ptr<Rendezvous> make_rendezvous(const LaunchOptions& options);

/// Makes the rendezvous of a run of several nodes or with replicas. It finds or hosts the coordinator and
/// follows its orders.
std::unique_ptr<Rendezvous> make_node_rendezvous(const LaunchOptions& options);

/// Whether the run is over. Logs it if restarts are left but the failure would recur.
bool is_final(const Verdict& verdict, int restarts_left);

/// Logs the cause that ended the round, and the restart of the workers: "restart 1 of 3".
void log_restart(const Verdict& verdict, int restarts, int max_restarts);

}  // namespace fsdp::launch
