#pragma once

// What a node learns from, and tells to, the other nodes of the run: when to start the workers and as which
// ranks, when to stop them, and how the run ended. The supervisor asks; nothing here blocks.

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/options.h"
#include "launch/verdict.h"
#include "launch/worker_environment.h"

namespace fsdp::launch {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// The sockets to poll, what to do after the poll, and the milliseconds until something is due without any
  /// event (-1: never).
  virtual void add_poll_entries(std::vector<pollfd>&) {}
  virtual void step() {}
  virtual int milliseconds_to_wait() const { return -1; }

  /// Once a round: where this node's workers have their place in it.
  virtual std::optional<NodePlacement> take_start() = 0;
  /// Why the workers of the present round are to stop, once there is a reason that other nodes know of.
  virtual std::optional<std::string> stop_reason() const { return std::nullopt; }
  /// How the run ended, once that is known; without workers running.
  virtual const std::optional<Verdict>& outcome() const = 0;

  /// A worker of this node has ended (its output may not be complete yet).
  virtual void worker_ended(const WorkerEnd&) {}
  /// All workers of this node have ended, and these are their ends in full. After a failure it puts the table
  /// of who waited for whom on the log, at once or when it knows of the other nodes' workers.
  virtual void round_ended(const std::vector<WorkerEnd>& ends) = 0;
  /// This node was told to stop: there is no restart for it.
  virtual void leave(int signal) = 0;
};

/// A run of one node.
class LocalRendezvous : public Rendezvous {
 public:
  explicit LocalRendezvous(const LaunchOptions& options);

  std::optional<NodePlacement> take_start() override;
  const std::optional<Verdict>& outcome() const override { return outcome_; }
  void round_ended(const std::vector<WorkerEnd>& ends) override;
  void leave(int signal) override;

 private:
  const LaunchOptions options_;
  const std::string run_id_;
  int restarts_ = 0;
  bool starts_ = true;
  bool leaving_ = false;
  std::optional<Verdict> outcome_;
};

/// TORCHELASTIC_RUN_ID of a run of one node: what the user chose, or a random one.
std::string run_id_or_random(const RendezvousOptions& options);

/// "restart 1 of 3: starting the workers again" on the log, after what ended the round.
void log_restart(const Verdict& verdict, int restarts, int max_restarts);

}  // namespace fsdp::launch
