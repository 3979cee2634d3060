#include "comm/api/launch_environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int64_t> number_variable(const char* name, int64_t least, int64_t most) {
  auto text = variable(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    util::fail(ErrorKind::kUsage, "environment variable ", name, ": expected an integer from ", least, " to ",
               most, "; found \"", *text, "\" (start the processes with fsdp-launch or torchrun)");
  }
  return value;
}

std::optional<int> integer_variable(const char* name, int least, int most) {
  const auto value = number_variable(name, least, most);
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

constexpr int kMostRanks = 1 << 20;

int required(const char* name, int least, int most) {
  const auto value = integer_variable(name, least, most);
  if (!value) {
    util::fail(ErrorKind::kUsage, "environment variable ", name,
               " is missing, although others of the same launcher are set");
  }
  return *value;
}

/// "2(x3),1" on node 3 -> 1.
int tasks_on_node(const std::string& text, int node) {
  std::istringstream groups(text);
  for (std::string group; std::getline(groups, group, ',');) {
    int tasks = 0, times = 1;
    if (std::sscanf(group.c_str(), "%d(x%d)", &tasks, &times) < 1) break;
    if (node < times && tasks > 0) return tasks;
    node -= times;
  }
  util::fail(ErrorKind::kUsage, "environment variable SLURM_STEP_TASKS_PER_NODE: expected the tasks of ",
             "each node, such as 2(x3),1, with this node at SLURM_NODEID; found \"", text, "\"");
}

/// "gpu[007-010,12],login" -> "gpu007".
std::string first_host(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of(",-]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

LaunchEnvironment from_torchrun() {
  const auto rank = integer_variable("RANK", 0, kMostRanks - 1);
  const auto world_size = integer_variable("WORLD_SIZE", 1, kMostRanks);
  if (!rank || !world_size) {
    util::fail(ErrorKind::kUsage, "environment variables RANK and WORLD_SIZE belong together; found only ",
               rank ? "RANK" : "WORLD_SIZE", " (start the processes with fsdp-launch or torchrun)");
  }
  if (*rank >= *world_size) {
    util::fail(ErrorKind::kUsage, "environment variable RANK: expected less than WORLD_SIZE ", *world_size,
               "; found ", *rank);
  }
  LaunchEnvironment environment{.rank = *rank, .world_size = *world_size};
  environment.local_rank = integer_variable("LOCAL_RANK", 0, kMostRanks - 1).value_or(*rank);
  environment.local_world_size = integer_variable("LOCAL_WORLD_SIZE", 1, kMostRanks).value_or(*world_size);
  environment.launcher_keeps_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  environment.restarts =
      integer_variable("TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int>::max()).value_or(0);
  return environment;
}

constexpr int64_t kMostSlurmId = std::numeric_limits<uint32_t>::max();

/// Whether this process belongs to a step that SLURM makes for a job's batch script or interactive shell
/// (slurm.h: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP and others at the end of 32 bits). Its variables look
/// like those of srun, but the user starts a single process there.
bool is_in_shell_of_slurm() {
  constexpr int64_t kFirstSpecialStep = 0xfffffff0;
  return number_variable("SLURM_STEP_ID", 0, kMostSlurmId).value_or(0) >= kFirstSpecialStep;
}

LaunchEnvironment from_srun() {
  LaunchEnvironment environment{.rank = required("SLURM_PROCID", 0, kMostRanks - 1),
                                .world_size = required("SLURM_STEP_NUM_TASKS", 1, kMostRanks),
                                .local_rank = required("SLURM_LOCALID", 0, kMostRanks - 1)};
  const auto tasks = variable("SLURM_STEP_TASKS_PER_NODE");
  environment.local_world_size =
      tasks ? tasks_on_node(*tasks, required("SLURM_NODEID", 0, kMostRanks)) : environment.world_size;
  if (!environment.single_node()) {
    environment.master_addr = first_host(variable("SLURM_STEP_NODELIST").value_or(environment.master_addr));
  }
  // Different ports for jobs that share a node, the same port for all tasks of a job.
  constexpr int kFirstPort = 20000, kPorts = 12000;
  const auto job = number_variable("SLURM_JOB_ID", 0, kMostSlurmId);
  const auto step = number_variable("SLURM_STEP_ID", 0, kMostSlurmId);
  constexpr int kStepsApart = 101;
  environment.master_port =
      kFirstPort +
      static_cast<int>((job.value_or(0) % kPorts + step.value_or(0) % kPorts * kStepsApart) % kPorts);
  return environment;
}

LaunchEnvironment from_mpirun() {
  LaunchEnvironment environment{.rank = required("OMPI_COMM_WORLD_RANK", 0, kMostRanks - 1),
                                .world_size = required("OMPI_COMM_WORLD_SIZE", 1, kMostRanks),
                                .local_rank = required("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMostRanks - 1),
                                .local_world_size = required("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks)};
  // mpirun does not tell where rank 0 is; join_run_store() asks for it.
  if (!environment.single_node()) environment.master_addr.clear();
  return environment;
}

/// The target of a link in /proc/self/ns.
std::string namespace_of(const char* path) {
  char text[64];
  const ssize_t length = ::readlink(path, text, sizeof(text));
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
}

}  // namespace

HostIdentity HostIdentity::read() {
  HostIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  identity.pid_namespace = namespace_of("/proc/self/ns/pid");
  identity.network_namespace = namespace_of("/proc/self/ns/net");
  return identity;
}

LaunchEnvironment read_launch_environment() {
  LaunchEnvironment environment;
  if (variable("RANK") || variable("WORLD_SIZE")) {
    environment = from_torchrun();
  } else if (variable("OMPI_COMM_WORLD_SIZE")) {
    environment = from_mpirun();
  } else if (variable("SLURM_STEP_NUM_TASKS") && !is_in_shell_of_slurm()) {
    // Batch scripts have SLURM_PROCID and SLURM_NTASKS too, but only processes of srun have this one.
    environment = from_srun();
  } else {
    return environment;
  }
  environment.has_launcher = true;
  environment.master_addr = variable("MASTER_ADDR").value_or(environment.master_addr);
  environment.master_port = integer_variable("MASTER_PORT", 1, 65535).value_or(environment.master_port);
  if (environment.rank >= environment.world_size || environment.local_rank >= environment.local_world_size ||
      environment.local_world_size > environment.world_size) {
    util::fail(ErrorKind::kUsage, "environment: expected LOCAL_RANK < LOCAL_WORLD_SIZE <= WORLD_SIZE; found ",
               environment.local_rank, ", ", environment.local_world_size, ", ", environment.world_size);
  }
  return environment;
}

}  // namespace fsdp::comm
