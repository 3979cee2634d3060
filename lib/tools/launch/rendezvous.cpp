#include "tools/launch/rendezvous.h"

#include <limits>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/system.h"
#include "tools/launch/token.h"
#include "tools/launch/wait_table.h"

namespace fsdp::launch {
namespace {

/// The rendezvous of a run of one node.
class LocalRendezvous final : public Rendezvous {
 public:
  explicit LocalRendezvous(const LaunchOptions& options)
      : options_(options),
        run_id_(options.rendezvous.id.empty() ? util::random_id() : options.rendezvous.id) {}

  std::optional<NodePlacement> take_start() override {
    if (!starts_) return std::nullopt;
    starts_ = false;
    return NodePlacement{
        .workers_per_node = options_.nproc_per_node,
        .world_size = options_.nproc_per_node,
        .master_addr = options_.master_addr,
        // A new port for each round: connections of the last round may still use the old one.
        .master_port = options_.master_port ? options_.master_port : free_port(),
        .run_id = run_id_,
        .role = options_.role,
        .restarts = restarts_,
        .max_restarts = options_.max_restarts};
  }

  const std::optional<Verdict>& outcome() const override { return outcome_; }

  void round_ended(const std::vector<WorkerEnd>& ends) override {
    Verdict verdict = judge(ends);
    const std::string table = verdict.is_failure() ? wait_table(ends, {}) : "";
    if (!table.empty()) util::log_error("state of the workers on this node:" + table);
    if (!verdict.is_failure() || leaving_ || is_final(verdict, options_.max_restarts - restarts_)) {
      outcome_ = std::move(verdict);
      return;
    }
    ++restarts_;
    starts_ = true;
    log_restart(verdict, restarts_, options_.max_restarts);
  }

  void leave(int signal) override {
    leaving_ = true;
    if (std::exchange(starts_, false)) outcome_ = Verdict{.exit_code = 128 + signal};
  }

 private:
  const LaunchOptions options_;
  const std::string run_id_;  ///< TORCHELASTIC_RUN_ID
  int restarts_ = 0;
  bool starts_ = true;
  bool leaving_ = false;
  std::optional<Verdict> outcome_;
};

/// The options of a run of one node with replicas, whose coordinator and node meet within this process.
LaunchOptions alone(LaunchOptions options) {
  RendezvousOptions& rendezvous = options.rendezvous;
  rendezvous = {.host = "127.0.0.1",
                .port = free_port(),
                .id = rendezvous.id,
                .join_timeout_seconds = rendezvous.join_timeout_seconds,
                .token = new_secret()};
  if (rendezvous.id.empty()) rendezvous.id = util::random_id();
  // A single node cannot be cut off from itself, even if it was stopped and continued.
  rendezvous.keep_alive_max_attempt = std::numeric_limits<int>::max();
  return options;
}

}  // namespace

std::unique_ptr<Rendezvous> make_rendezvous(const LaunchOptions& options) {
  if (options.is_multi_node()) return make_node_rendezvous(options);
  if (options.has_replicas()) return make_node_rendezvous(alone(options));
  return std::make_unique<LocalRendezvous>(options);
}

bool is_final(const Verdict& verdict, int restarts_left) {
  if (restarts_left <= 0) return true;
  if (may_end_differently(verdict)) return false;
  util::log_warning(concat(name_of(*verdict.culprit), " ", ending(verdict.culprit->status),
                           verdict.exit_code == static_cast<int>(ErrorKind::kDiverged)
                               ? ", which is for a loss or norm that is not finite"
                               : ", which is for a mistake in the command line, environment or config",
                           ": the failure would recur, so it is not restarted (--max-restarts)"));
  return true;
}

void log_restart(const Verdict& verdict, int restarts, int max_restarts) {
  const std::string what =
      verdict.culprit ? name_of(*verdict.culprit) + " " + ending(verdict.culprit->status) : verdict.cause;
  util::log_warning(concat(what, ": restarting all workers, restart ", restarts, " of ", max_restarts,
                           " (--max-restarts)"));
}

}  // namespace fsdp::launch
