#pragma once

// The values of fsdp-launch's options, from the text that the user wrote. All of them throw Error(kUsage)
// that names the option, what was expected and what was found.

#include <set>
#include <string>
#include <vector>

#include "launch/options.h"

namespace fsdp::launch {

/// "4" -> 4; "cpu" -> available_cores(); "gpu" -> gpu_count(), an error without one; "auto" -> "gpu" if there
/// is one, else "cpu".
int workers_from_text(const std::string& text);

/// "2" -> {2, 2}; "1:4" -> {1, 4}.
NodeRange nodes_from_text(const std::string& text);

/// torchrun's form: "3" -> both streams of all workers; "0:1,2:3" -> standard output of local rank 0, both of
/// local rank 2.
StreamChoice streams_from_text(const std::string& option, const std::string& text);

/// "0,2" -> {0, 2}; "" -> {}.
std::set<int> ranks_from_text(const std::string& option, const std::string& text);

/// "SIGTERM,USR1" -> {SIGTERM, SIGUSR1}. Signals that cannot be caught are refused.
std::vector<int> signals_from_text(const std::string& text);

/// "", "node", "socket", "exclusive", "core-complex".
NumaBinding numa_binding_from_text(const std::string& text);

/// "static" or "c10d".
RendezvousOptions::Backend backend_from_text(const std::string& text);

/// "host:29400", "host" (default_port), "[::1]:29400" into options.host and options.port; "" leaves them.
void read_endpoint(const std::string& text, int default_port, RendezvousOptions& options);

/// "join_timeout=60,last_call_timeout=5" into the members of those names; also timeout (torchrun's static
/// name of join_timeout), keep_alive_interval, keep_alive_max_attempt, is_host and token_file.
void read_rendezvous_conf(const std::string& text, RendezvousOptions& options);

}  // namespace fsdp::launch
