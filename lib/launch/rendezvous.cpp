#include "launch/rendezvous.h"

#include <utility>

#include "launch/wait_table.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::launch {

std::string run_id_or_random(const RendezvousOptions& options) {
  return options.id.empty() ? new_run_id() : options.id;
}

void log_restart(const Verdict& verdict, int restarts, int max_restarts) {
  const std::string what =
      verdict.culprit ? name_of(*verdict.culprit) + " " + ending(verdict.culprit->status) : verdict.cause;
  util::log_warning(util::concat(what, ": starting all workers again, restart ", restarts, " of ",
                                 max_restarts, " (--max-restarts)"));
}

LocalRendezvous::LocalRendezvous(const LaunchOptions& options)
    : options_(options), run_id_(run_id_or_random(options.rendezvous)) {}

std::optional<NodePlacement> LocalRendezvous::take_start() {
  if (!starts_) return std::nullopt;
  starts_ = false;
  return NodePlacement{.workers_per_node = options_.nproc_per_node,
                       .world_size = options_.nproc_per_node,
                       .master_addr = options_.master_addr,
                       // Another one for each round: the last one's connections may still hold it.
                       .master_port = options_.master_port ? options_.master_port : free_port(),
                       .run_id = run_id_,
                       .role = options_.role,
                       .restarts = restarts_,
                       .max_restarts = options_.max_restarts};
}

void LocalRendezvous::round_ended(const std::vector<WorkerEnd>& ends) {
  Verdict verdict = judge(ends);
  const std::string table = verdict.is_failure() ? wait_table(ends, {}) : "";
  if (!table.empty()) util::log_error("where the workers of this node stood:" + table);
  if (!verdict.is_failure() || leaving_ || restarts_ == options_.max_restarts) {
    outcome_ = std::move(verdict);
    return;
  }
  ++restarts_;
  starts_ = true;
  log_restart(verdict, restarts_, options_.max_restarts);
}

void LocalRendezvous::leave(int signal) {
  leaving_ = true;
  if (std::exchange(starts_, false)) outcome_ = Verdict{.exit_code = 128 + signal};
}

}  // namespace fsdp::launch
