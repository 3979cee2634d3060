#pragma once

// The environment variables that give a worker its place in the run. They are torchrun's, so that programs
// written for torchrun also run under fsdp-launch.

#include <string>
#include <vector>

namespace fsdp::launch {

/// The values that all workers of a node share.
struct NodePlacement {
  int node_rank = 0;
  int nodes = 1;
  int workers_per_node = 1;  ///< number of workers on this node
  int first_rank = 0;        ///< rank of local rank 0
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;  ///< unique to the run
  std::string role = "default";
  int restarts = 0;  ///< restarts of all workers so far
  int max_restarts = 0;
  int terminal_columns = 0;  ///< width of the launcher's terminal; 0 without one
};

/// The values of one worker.
struct WorkerPlace {
  int local_rank = 0;
  int cores = 1;               ///< its share of the node's cores
  std::string error_file{};    ///< file to which it may write why it failed
  std::string launch_marks{};  ///< see OrphanGuard
  int channel = -1;            ///< descriptor of the channel to its launcher, with replicas; -1: none
  int restarts = -1;           ///< restarts of its replica; -1: NodePlacement::restarts
};

/// The prefix of each line of a worker on the launcher's console: "[rank3] ".
std::string line_prefix(int rank);

/// `inherited` ("NAME=value" entries) with the variables of a worker added or replaced. In addition to
/// torchrun's: OMP_NUM_THREADS, unless inherited, is the worker's share of cores (torchrun sets 1, which
/// leaves cores idle); FSDP_TERMINAL_COLUMNS is the width available to a progress bar, and absent if nobody
/// would see the bar; FSDP_LAUNCH_ID; FSDP_LAUNCH_CHANNEL with replicas (worker_channel.h). The launcher's
/// FSDP_LAUNCH_TOKEN is removed.
std::vector<std::string> worker_environment(const NodePlacement& placement, const WorkerPlace& worker,
                                            const std::vector<std::string>& inherited);

/// The variable with the number of the descriptor of a worker's channel to its launcher.
inline constexpr const char* kChannelVariable = "FSDP_LAUNCH_CHANNEL";

/// This process's environment as "NAME=value" entries.
std::vector<std::string> current_environment();

/// A free TCP port. Another process may take it before rank 0 does. Throws Error(kUnexpected) if there is
/// none.
int free_port();

}  // namespace fsdp::launch
