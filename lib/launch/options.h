#pragma once

// What a user of fsdp-launch can choose. The names are torchrun's.

#include <signal.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fsdp::launch {

/// How many nodes a run may have.
struct NodeRange {
  int min = 1;
  int max = 1;
  bool operator==(const NodeRange&) const = default;
};

/// A choice of standard output (bit 1) and standard error (bit 2) for each worker of a node.
struct StreamChoice {
  static constexpr int kOut = 1, kErr = 2;
  int of_all = 0;
  std::map<int, int> of_local_rank{};  ///< in place of of_all, which is 0 then

  int of(int local_rank) const;
  bool any() const { return of_all != 0 || !of_local_rank.empty(); }
  bool operator==(const StreamChoice&) const = default;
};

/// Which cores a worker may run on.
enum class NumaBinding {
  kNone,
  kNode,         ///< those of its NUMA node
  kSocket,       ///< those of its NUMA node's socket
  kExclusive,    ///< a share of its NUMA node's that no other worker has
  kCoreComplex,  ///< those that share one L3 cache in its NUMA node
};

/// How the nodes of a run find each other.
struct RendezvousOptions {
  enum class Backend {
    kStatic,  ///< every node is told its rank; node 0 is the host
    kC10d,    ///< ranks in the order of joining; the node that has the endpoint's address is the host
  };
  Backend backend = Backend::kStatic;
  std::string host;  ///< of the endpoint
  int port = 0;
  std::string id;                          ///< the same on every node; empty: "none"
  double join_timeout_seconds = 600;       ///< for enough nodes to come
  double last_call_timeout_seconds = 30;   ///< for more nodes than the fewest to come
  double keep_alive_interval_seconds = 0;  ///< between heartbeats; 0: the monitor interval
  int keep_alive_max_attempt = 10;         ///< heartbeats missed by a node that is lost
  std::optional<bool> is_host{};           ///< whether this node is the host; none: by its address
  std::string token_file;                  ///< holds the job's token; made by the host if it is not there
};

struct LaunchOptions {
  int nproc_per_node = 1;                 ///< workers on this node
  NodeRange nnodes;                       ///< nodes of the run
  int node_rank = 0;                      ///< this node's number in [0, nnodes)
  std::string master_addr = "127.0.0.1";  ///< where rank 0 listens
  int master_port = 0;                    ///< 0: a port that is free now
  std::string local_addr;                 ///< this node's address for the others; empty: found out
  RendezvousOptions rendezvous;
  std::string role = "default";          ///< ROLE_NAME of the workers
  int max_restarts = 0;                  ///< of all workers, after a failure
  double monitor_interval_seconds = 1;   ///< between the heartbeats of nodes
  double shutdown_timeout_seconds = 30;  ///< from SIGTERM to SIGKILL
  std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};  ///< passed on to workers
  std::string log_dir;               ///< folder for log files; empty: none, or a new one if they are needed
  StreamChoice redirects;            ///< streams that go to a file
  StreamChoice tee;                  ///< streams that go to a file and to the console
  std::set<int> local_ranks_filter;  ///< workers shown on the console; empty: all
  NumaBinding numa_binding = NumaBinding::kNone;
  std::vector<std::string> program;  ///< the program and its arguments

  bool is_multi_node() const { return nnodes.max > 1; }
};

/// Cores that this process may run on (its affinity mask), at least 1.
int available_cores();

/// Throws Error(kUsage) for the first option that is out of range or does not fit another one.
void validate(const LaunchOptions& options);

}  // namespace fsdp::launch
