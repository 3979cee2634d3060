#pragma once

// What a user of fsdp-launch can choose. The names are torchrun's.

#include <string>
#include <vector>

namespace fsdp::launch {

struct LaunchOptions {
  int nproc_per_node = 1;                 ///< workers on this node
  int nnodes = 1;                         ///< nodes of the run; one for now
  int node_rank = 0;                      ///< this node's number in [0, nnodes)
  std::string master_addr = "127.0.0.1";  ///< where rank 0 listens
  int master_port = 0;                    ///< 0: a port that is free now
  std::string log_dir;                    ///< folder for a file a rank; empty: none
  double shutdown_timeout_seconds = 30;   ///< from SIGTERM to SIGKILL
  std::vector<std::string> program;       ///< the program and its arguments
};

/// Cores that this process may run on (its affinity mask), at least 1.
int available_cores();

/// "4" -> 4; "auto" and "cpu" -> available_cores(). Throws Error(kUsage) for anything else.
int workers_from_text(const std::string& text);

/// "1" or torchrun's range "1:1" -> 1. Throws Error(kUsage) for anything else.
int nodes_from_text(const std::string& text);

/// Throws Error(kUsage) for the first option that is out of range.
void validate(const LaunchOptions& options);

}  // namespace fsdp::launch
