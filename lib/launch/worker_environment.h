#pragma once

// The environment variables by which a worker learns its place in the run: torchrun's, name by name, so that
// programs written for torchrun run under fsdp-launch as well.

#include <string>
#include <vector>

namespace fsdp::launch {

/// What all workers of a node have in common.
struct NodePlacement {
  int node_rank = 0;
  int nodes = 1;
  int workers_per_node = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;        ///< the same for every worker of the run, another one for the next run
  int terminal_columns = 0;  ///< width of the launcher's terminal; 0: it has none
};

/// "[rank3] ": what stands before each line of that worker on the launcher's console.
std::string line_prefix(int rank);

/// `inherited` ("NAME=value" entries) with the variables of worker `local_rank` put in place of their
/// namesakes. Two more than torchrun has: OMP_NUM_THREADS, unless inherited, divides the cores among the
/// workers (torchrun sets 1, which leaves cores idle); FSDP_TERMINAL_COLUMNS is how wide a progress bar may
/// be, and its absence says that nobody would see one.
std::vector<std::string> worker_environment(const NodePlacement& placement, int local_rank,
                                            const std::vector<std::string>& inherited);

/// This process's environment as "NAME=value" entries.
std::vector<std::string> current_environment();

/// A TCP port that no socket of this machine listens on now. Another process may take it before rank 0 does.
/// Throws Error(kUnexpected) when there is none.
int free_port();

/// 16 random hexadecimal digits.
std::string new_run_id();

}  // namespace fsdp::launch
