#pragma once

// A node of a run of several: finds the coordinator, or keeps it, and does as it says.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/coordinator_server.h"
#include "launch/endpoint.h"
#include "launch/message.h"
#include "launch/rendezvous.h"

namespace fsdp::launch {

class NodeRendezvous : public Rendezvous {
 public:
  /// Decides whether this node is the host, and listens then. Throws Error(kUsage) when the endpoint cannot
  /// be.
  explicit NodeRendezvous(const LaunchOptions& options);

  void add_poll_entries(std::vector<pollfd>& entries) override;
  void step() override;
  int milliseconds_to_wait() const override;
  std::optional<NodePlacement> take_start() override;
  std::optional<std::string> stop_reason() const override { return stop_reason_; }
  const std::optional<Verdict>& outcome() const override;
  void worker_ended(const WorkerEnd& end) override;
  void round_ended(const std::vector<WorkerEnd>& ends) override;
  void leave(int signal) override;

 private:
  using Clock = std::chrono::steady_clock;

  void become_host();
  void connect();
  void handle(const Message& message);
  void connection_failed();
  void end(Verdict verdict);
  void show_own_table();
  void send(const Message& message);

  const LaunchOptions options_;
  const double heartbeat_seconds_;
  const std::string endpoint_;  ///< "host:port"
  const Clock::time_point started_;
  std::string token_;
  /// Whether any of several launchers on this machine may be the host. When two bind the port at once, Linux
  /// may let neither of them listen; so who finds nobody there tries again.
  bool competes_ = false;
  std::unique_ptr<CoordinatorServer> server_;  ///< on the host
  std::optional<LineSocket> socket_;           ///< to the coordinator
  Clock::time_point connecting_since_{}, next_attempt_, next_heartbeat_{}, heard_at_{};
  std::string last_failure_ = "no answer";
  double silence_seconds_ = 0;  ///< of a coordinator that is lost
  bool welcome_ = false;
  bool said_what_is_awaited_ = false;
  int leaving_ = 0;
  bool in_round_ = false;
  std::vector<WorkerEnd> untold_;  ///< this node's of the last round, as long as no table of all has come
  std::optional<NodePlacement> start_;
  std::optional<std::string> stop_reason_;
  std::optional<Verdict> outcome_;
  const std::optional<Verdict> none_;
};

/// The job's token: FSDP_LAUNCH_TOKEN, else the content of `token_file`, else "". The host makes the file,
/// for its user alone and with a random token, if it is not there; on the other nodes nothing is returned as
/// long as it is not. Throws Error(kUsage) for a file that others may read, Error(kIo) for one that cannot
/// be.
std::optional<std::string> job_token(const std::string& token_file, bool is_host);

}  // namespace fsdp::launch
