#pragma once

// The environment variables that give a worker its place in the run. They are those of torchrun, so programs
// written for torchrun run under fsdp-launch too.

#include <string>
#include <vector>

namespace fsdp::launch {

/// The values that all workers of a node share.
struct NodePlacement {
  int node_rank = 0;
  int nodes = 1;
  int workers_per_node = 1;  ///< on this node
  int first_rank = 0;        ///< of local rank 0
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;  ///< unique to the run
  std::string role = "default";
  int restarts = 0;  ///< of all workers, so far
  int max_restarts = 0;
  int terminal_columns = 0;  ///< width of the launcher's terminal; 0 without one
};

/// The values of one worker.
struct WorkerPlace {
  int local_rank = 0;
  int cores = 1;               ///< its share of the node's
  std::string error_file{};    ///< to which it may write why it failed
  std::string launch_marks{};  ///< see OrphanGuard
  int channel = -1;            ///< to its launcher, with replicas
  int restarts = -1;           ///< of its replica; -1: NodePlacement::restarts
};

/// "[rank3] ", before each line of that worker on the launcher's console.
std::string line_prefix(int rank);

/// `inherited` ("NAME=value" entries) with the variables of a worker added or replaced. In addition to torchrun's:
/// OMP_NUM_THREADS, unless inherited, is the worker's share of cores (torchrun sets 1, which leaves cores idle);
/// FSDP_TERMINAL_COLUMNS is the width available to a progress bar, and absent if nobody would see one;
/// FSDP_LAUNCH_ID; FSDP_LAUNCH_CHANNEL with replicas (worker_channel.h). The launcher's FSDP_LAUNCH_TOKEN is removed.
std::vector<std::string> worker_environment(const NodePlacement& placement, const WorkerPlace& worker,
                                            const std::vector<std::string>& inherited);

/// The number of the descriptor through which a worker and its launcher talk.
inline constexpr const char* kChannelVariable = "FSDP_LAUNCH_CHANNEL";

/// This process's environment as "NAME=value" entries.
std::vector<std::string> current_environment();

/// A free TCP port. Another process may take it before rank 0 does. Throws Error(kUnexpected) when there is none.
int free_port();

/// 16 random hexadecimal digits.
std::string new_run_id();

}  // namespace fsdp::launch
