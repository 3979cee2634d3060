#pragma once

// How the nodes of a run agree when to start the workers and with which ranks, when to stop them, and how the
// run ended.

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
  bool is_failure = true;  ///< otherwise they were told from outside, or the nodes of the run change
};

/// A node's part. The supervisor calls it; nothing here blocks.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// The sockets to poll, the work after the poll, and the milliseconds until something is due without an event
  /// (-1: never).
  virtual void add_poll_entries(std::vector<pollfd>&) {}
  virtual void step() {}
  virtual int milliseconds_to_wait() const { return -1; }

  /// Once per round: the places of this node's workers in it.
  virtual std::optional<NodePlacement> take_start() = 0;
  /// Why the workers of the present round must stop, if another node gave a reason.
  virtual std::optional<StopReason> stop_reason() const { return std::nullopt; }
  /// Others go on without this node, so that its workers must be killed: one that saves or says that the run is to stop
  /// could still reach the others' workers.
  virtual bool is_cut_off() const { return false; }
  /// With replicas: what to do next with single workers, which live for as long as the round lasts.
  virtual std::optional<WorkerOrder> take_order() { return std::nullopt; }
  /// Whether the round ends once no worker of this node runs.
  virtual bool may_end_round() const { return true; }
  /// How the run ended, once that is known and no worker runs.
  virtual const std::optional<Verdict>& outcome() const = 0;

  /// A worker of this node has ended (its output may still be incomplete).
  virtual void worker_ended(const WorkerEnd&) {}
  /// A worker of this node has said something over its channel.
  virtual void worker_said(int /*rank*/, int /*incarnation*/, const WorkerReport&) {}
  /// All workers of this node have ended; these are their complete ends. After a failure this logs the table of
  /// who waited for whom, at once or when the ends of the other nodes' workers are known.
  virtual void round_ended(const std::vector<WorkerEnd>& ends) = 0;
  /// This node was told to stop by `signal`; it takes part in no restart.
  virtual void leave(int signal) = 0;
};

/// For a run of one node or of several. Throws Error(kUsage) when the endpoint cannot be used.
std::unique_ptr<Rendezvous> make_rendezvous(const LaunchOptions& options);

/// For a node of a run of several, or with replicas: finds the coordinator, or hosts it, and follows its orders.
std::unique_ptr<Rendezvous> make_node_rendezvous(const LaunchOptions& options);

/// Whether the run is over although restarts may be left, which is logged then: the failure would come again.
bool is_final(const Verdict& verdict, int restarts_left);

/// Logs what ended the round and that the workers are started again: "restart 1 of 3".
void log_restart(const Verdict& verdict, int restarts, int max_restarts);

}  // namespace fsdp::launch
