#include "tools/launch/worker_environment.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/util/error.h"
#include "tools/launch/descriptor.h"
#include "tools/launch/orphan_guard.h"
#include "tools/launch/token.h"

namespace fsdp::launch {

std::string line_prefix(int rank) { return concat("[rank", rank, "] "); }

std::vector<std::string> worker_environment(const NodePlacement& placement, const WorkerPlace& worker,
                                            const std::vector<std::string>& inherited) {
  const int rank = placement.first_rank + worker.local_rank;
  const std::string world_size = std::to_string(placement.world_size);
  std::map<std::string, std::string> values;
  for (const std::string& entry : inherited) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) values.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  values["RANK"] = std::to_string(rank);
  values["LOCAL_RANK"] = std::to_string(worker.local_rank);
  values["WORLD_SIZE"] = world_size;
  values["LOCAL_WORLD_SIZE"] = std::to_string(placement.workers_per_node);
  values["GROUP_RANK"] = std::to_string(placement.node_rank);
  values["GROUP_WORLD_SIZE"] = std::to_string(placement.nodes);
  values["ROLE_RANK"] = std::to_string(rank);
  values["ROLE_WORLD_SIZE"] = world_size;
  values["ROLE_NAME"] = placement.role;
  values["MASTER_ADDR"] = placement.master_addr;
  values["MASTER_PORT"] = std::to_string(placement.master_port);
  values["TORCHELASTIC_RUN_ID"] = placement.run_id;
  values["TORCHELASTIC_RESTART_COUNT"] =
      std::to_string(worker.restarts < 0 ? placement.restarts : worker.restarts);
  values["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(placement.max_restarts);
  // Rank 0 hosts the store. With True it would expect a store hosted by the launcher.
  values["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  values["TORCHELASTIC_ERROR_FILE"] = worker.error_file;
  values.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  values.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, worker.cores)));
  values[OrphanGuard::kVariable] = worker.launch_marks;
  values.erase(kTokenVariable);
  // An inherited value would be the channel of another launcher.
  values.erase(kChannelVariable);
  if (worker.channel >= 0) values[kChannelVariable] = std::to_string(worker.channel);
  // A launcher under another launcher inherits the variable, but only its own terminal matters.
  values.erase("FSDP_TERMINAL_COLUMNS");
  if (placement.terminal_columns > 0) {
    const int prefix_columns = static_cast<int>(line_prefix(rank).size());
    values["FSDP_TERMINAL_COLUMNS"] =
        std::to_string(std::max(1, placement.terminal_columns - prefix_columns));
  }

  std::vector<std::string> entries;
  for (const auto& [name, value] : values) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry && *entry; ++entry) entries.emplace_back(*entry);
  return entries;
}

int free_port() {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);  // rank 0's store listens on every address
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.is_open() || ::bind(listener.get(), generic, size) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0) {
    fail(ErrorKind::kUnexpected, "cannot find a free TCP port: ", util::errno_text(errno),
         "; name one with --master-port");
  }
  return ntohs(address.sin_port);
}

}  // namespace fsdp::launch
