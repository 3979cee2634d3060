#pragma once

// Who this process is in the run, from the environment that torchrun, fsdp-launch and others set.

#include <string>

namespace fsdp::comm {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;

  bool single_node() const { return local_world_size == world_size; }
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without any of RANK and
/// WORLD_SIZE it is a world of one. Throws Error(kUsage) that names the variable, its value and what was
/// expected.
LaunchEnvironment read_launch_environment();

}  // namespace fsdp::comm
