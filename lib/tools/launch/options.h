#pragma once

// The options of fsdp-launch, with torchrun's names, and their values from the text of the command line.

#include <signal.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/launch/on_hosts.h"

namespace fsdp::launch {

/// Bounds on the number of nodes of a run.
struct NodeRange {
  int min = 1;
  int max = 1;
  bool operator==(const NodeRange&) const = default;
};

/// A choice of standard output (bit 1) and standard error (bit 2) for each worker of a node.
struct StreamChoice {
  static constexpr int kOut = 1, kErr = 2;
  int of_all = 0;
  std::map<int, int> of_local_rank{};  ///< replaces of_all, which is 0 then

  int of(int local_rank) const;
  bool any() const { return of_all != 0 || !of_local_rank.empty(); }
  bool operator==(const StreamChoice&) const = default;
};

/// The cores on which a worker may run.
enum class NumaBinding {
  kNone,
  kNode,         ///< cores of its NUMA node
  kSocket,       ///< cores of its NUMA node's socket
  kExclusive,    ///< a share of its NUMA node's cores that no other worker uses
  kCoreComplex,  ///< cores that share one L3 cache in its NUMA node
};

/// The rule that gives nodes their ranks (--rdzv-backend).
enum class RendezvousKind {
  kStatic,  ///< every node is given its rank; node 0 is the host
  kC10d,    ///< ranks in the order of joining; the node with the endpoint's address is the host
};

/// How the nodes of a run find each other.
struct RendezvousOptions {
  RendezvousKind backend = RendezvousKind::kStatic;
  bool is_static() const { return backend == RendezvousKind::kStatic; }
  std::string host;  ///< host of the endpoint
  int port = 0;
  std::string id;                          ///< the same on every node; empty: "none"
  double join_timeout_seconds = 600;       ///< limit for the minimum number of nodes to join
  double last_call_timeout_seconds = 30;   ///< wait for more nodes than the minimum
  double keep_alive_interval_seconds = 0;  ///< time between heartbeats; 0: the monitor interval
  int keep_alive_max_attempt = 10;         ///< number of missed heartbeats after which a node is lost
  std::optional<bool> is_host{};           ///< whether this node is the host; unset: by its address
  std::string token_file = {};  ///< file with the run's token; the host creates it if it is absent (token.h)
  std::string token = {};       ///< the token itself; empty: from the environment or the file
  bool trust_network = false;   ///< whether the run needs no token
};

struct LaunchOptions {
  LaunchOnHosts on_hosts;                 ///< with hosts: launchers to start there, in place of workers here
  int nproc_per_node = 1;                 ///< workers on this node
  NodeRange nnodes;                       ///< nodes of the run
  int node_rank = 0;                      ///< this node's number in [0, nnodes)
  std::string master_addr = "127.0.0.1";  ///< address where rank 0 listens
  int master_port = 0;                    ///< 0: a port that is free now
  std::string local_addr;                 ///< this node's address for the others; empty: detected
  RendezvousOptions rendezvous;
  std::string role = "default";          ///< ROLE_NAME of the workers
  int max_restarts = 0;                  ///< most restarts of all workers, or of each replica, after failures
  int replica_size = 0;                  ///< workers of a replica (see membership.h); 0: no replicas
  int min_replicas = 1;                  ///< least number of replicas with which the run continues
  double stop_timeout_seconds = 30;      ///< limit for workers to leave an epoch that is broken off
  double monitor_interval_seconds = 1;   ///< time between heartbeats of nodes
  double shutdown_timeout_seconds = 30;  ///< time from SIGTERM to SIGKILL
  /// Signals that are passed on to workers.
  std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  std::string log_dir;               ///< folder for log files; empty: none, or a new one if they are needed
  StreamChoice redirects;            ///< streams that go to a file
  StreamChoice tee;                  ///< streams that go to a file and to the console
  std::set<int> local_ranks_filter;  ///< workers shown on the console; empty: all
  NumaBinding numa_binding = NumaBinding::kNone;
  std::vector<std::string> program;  ///< the program and its arguments

  bool is_multi_node() const { return nnodes.max > 1; }
  bool has_replicas() const { return replica_size > 0; }
  bool has_stream_files() const { return redirects.any() || tee.any(); }
};

/// Throws Error(kUsage) for the first option that is out of range or contradicts another one.
void validate(const LaunchOptions& options);

/// Throws Error(kUsage) if there is no program to start.
void check_program(const std::vector<std::string>& program);

// Values from text. All of these throw Error(kUsage) that names the option, the expected values and the text.

/// The number of workers: "4" -> 4; "cpu" -> available_cores(); "gpu" -> gpu_count(), an error if 0; "auto"
/// -> "gpu" if there is a GPU, else "cpu".
int workers_from_text(const std::string& text);

/// Bounds on the number of nodes: "2" -> {2, 2}; "1:4" -> {1, 4}.
NodeRange nodes_from_text(const std::string& text);

/// Streams in torchrun's form: "3" -> both streams of all workers; "0:1,2:3" -> standard output of local rank
/// 0, both streams of local rank 2.
StreamChoice streams_from_text(const std::string& option, const std::string& text);

/// A set of ranks: "0,2" -> {0, 2}; "" -> {}.
std::set<int> ranks_from_text(const std::string& option, const std::string& text);

/// A list of signals: "SIGTERM,USR1" -> {SIGTERM, SIGUSR1}. Refuses signals that cannot be caught.
std::vector<int> signals_from_text(const std::string& text);

/// A binding: "", "node", "socket", "exclusive", "core-complex".
NumaBinding numa_binding_from_text(const std::string& text);

/// A backend: "static" or "c10d".
RendezvousKind backend_from_text(const std::string& text);

/// Sets options.host and options.port from "host:29400", "host" (default_port) or "[::1]:29400". "" changes
/// nothing.
void read_endpoint(const std::string& text, int default_port, RendezvousOptions& options);

/// Sets the members named in "join_timeout=60,last_call_timeout=5": join_timeout (with torchrun's static
/// backend also "timeout"), last_call_timeout, keep_alive_interval, keep_alive_max_attempt, is_host,
/// token_file and trust_network.
void read_rendezvous_conf(const std::string& text, RendezvousOptions& options);

}  // namespace fsdp::launch
