#pragma once

// The place of this process in the run, from the environment that its launcher has set (fsdp-launch,
// torchrun, srun or mpirun), and the identity of its host.

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace fsdp::comm {

/// The defaults are those without a launcher: the only process.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";  ///< empty: the launcher did not give it
  int master_port = 29500;                ///< 0: another kind of store, which master_addr names
  /// Whether the launcher hosts the store at master_addr:master_port; otherwise rank 0 does.
  bool launcher_keeps_store = false;
  /// Number of times that the launcher has restarted all processes. A store that it hosts keeps earlier
  /// entries.
  int restarts = 0;
  /// Whether a launcher started this process, passes signals on to it and kills it if it does not end.
  bool has_launcher = false;
  /// Whether this group is to be given up, as far as the launcher knows: it knows which ranks are lost, so no
  /// rank needs to wait over the network. Called from any thread while a rank waits. Null: the launcher does
  /// not tell.
  std::function<bool()> is_broken_off = nullptr;

  bool single_node() const { return local_world_size == world_size; }
};

/// Reads the variables of the first launcher in this list that has set its own:
/// - torchrun and fsdp-launch: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
///   TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT;
/// - srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_TASKS_PER_NODE; the
///   master is the first host of SLURM_STEP_NODELIST, at a port made of SLURM_JOB_ID, unless MASTER_ADDR and
///   MASTER_PORT say otherwise. The step of an interactive shell (salloc) is none;
/// - Open MPI's mpirun: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; over several nodes MASTER_ADDR
///   too, except for communication over MPI.
/// Without any of them, a world of one. Throws Error(kUsage) that names the variable, its value and the
/// values that are expected.
LaunchEnvironment read_launch_environment();

/// Distinguishes hosts. Containers of one host that cannot see each other's processes or that have separate
/// network addresses count as separate hosts.
struct HostIdentity {
  std::string boot_id;            ///< /proc/sys/kernel/random/boot_id
  std::string pid_namespace;      ///< /proc/self/ns/pid
  std::string network_namespace;  ///< /proc/self/ns/net

  static HostIdentity read();
  auto operator<=>(const HostIdentity&) const = default;
};

/// A rank's host, and the memory that the rank offers to the other ranks there.
struct HostOptions {
  HostIdentity identity = HostIdentity::read();
  int64_t segment_bytes = 0;  ///< address space of each rank's segment; 0: twice the host's memory
};

}  // namespace fsdp::comm
