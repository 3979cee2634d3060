#include "tools/launch/node_hardware.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "base/util/error.h"
#include "base/util/system.h"

namespace fsdp::launch {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

/// Whether a name is `kind` with a number: "nvidia7" for "nvidia", but not "nvidiactl".
bool is_numbered(const std::string& name, const std::string& kind) {
  return name.size() > kind.size() && name.starts_with(kind) &&
         name.find_first_not_of("0123456789", kind.size()) == std::string::npos;
}

/// The entries of CUDA_VISIBLE_DEVICES before the first negative or empty entry, where CUDA stops reading.
std::optional<std::vector<std::string>> visible_devices() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!text) return std::nullopt;
  std::vector<std::string> devices;
  std::istringstream stream(text);
  for (std::string device; std::getline(stream, device, ',') && !device.empty() && device.front() != '-';) {
    devices.push_back(device);
  }
  return devices;
}

/// The first number of a file ("4" or a list of CPUs like "4-7,12"), or `otherwise`.
int first_number(const fs::path& path, int otherwise) {
  std::ifstream file(path);
  int value = 0;
  return file >> value ? value : otherwise;
}

int numa_node_of(const fs::path& cpu) {
  for (const std::string& name : names_in(cpu)) {
    if (is_numbered(name, "node")) return std::stoi(name.substr(4));
  }
  return 0;
}

std::vector<int> ids_of(const std::vector<LogicalCpu>& cpus,
                        const std::function<bool(const LogicalCpu&)>& in) {
  std::vector<int> ids;
  for (const LogicalCpu& cpu : cpus) {
    if (in(cpu)) ids.push_back(cpu.id);
  }
  return ids;
}

/// The NUMA node of each worker.
std::vector<int> nodes_of_workers(const std::vector<LogicalCpu>& cpus, const std::vector<int>& gpu_numa_nodes,
                                  int workers) {
  std::set<int> present;
  for (const LogicalCpu& cpu : cpus) present.insert(cpu.numa_node);
  const std::vector<int> nodes(present.begin(), present.end());
  std::vector<int> result;
  for (int worker = 0; worker < workers; ++worker) {
    const auto index = static_cast<size_t>(worker);
    const int near_gpu = index < gpu_numa_nodes.size() ? gpu_numa_nodes[index] : -1;
    result.push_back(present.contains(near_gpu) ? near_gpu
                                                : nodes[index * nodes.size() / static_cast<size_t>(workers)]);
  }
  return result;
}

}  // namespace

int available_cores(const fs::path& root) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // The call fails on machines with more cores than cpu_set_t has bits.
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
  const int cores =
      std::max(1, known ? CPU_COUNT(&mask) : static_cast<int>(std::thread::hardware_concurrency()));
  return std::min(cores, util::cpu_quota(root).value_or(cores));
}

int gpu_count() {
  const auto is_gpu = [](const std::string& name) { return is_numbered(name, "nvidia"); };
  const int devices = static_cast<int>(std::ranges::count_if(names_in("/dev"), is_gpu));
  const auto visible = visible_devices();
  return visible ? std::min(devices, static_cast<int>(visible->size())) : devices;
}

std::vector<int> gpu_numa_nodes(const fs::path& root) {
  std::vector<int> nodes;
  for (std::string address : names_in(root / "proc/driver/nvidia/gpus")) {
    std::transform(address.begin(), address.end(), address.begin(), ::tolower);
    std::ifstream file(root / "sys/bus/pci/devices" / address / "numa_node");
    int node = -1;
    file >> node;
    nodes.push_back(file ? node : -1);
  }
  const auto visible = visible_devices();
  if (!visible) return nodes;
  std::vector<int> chosen;
  for (const std::string& device : *visible) {
    size_t index = 0;
    auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), index);
    const bool by_number = error == std::errc() && end == device.data() + device.size();
    // A GPU that was chosen by UUID is unknown.
    chosen.push_back(by_number && index < nodes.size() ? nodes[index] : -1);
  }
  return nodes.empty() ? nodes : chosen;
}

std::vector<LogicalCpu> read_cpus(const fs::path& system) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  std::vector<LogicalCpu> cpus;
  for (int id = 0; id < CPU_SETSIZE; ++id) {
    const fs::path folder = system / "devices/system/cpu" / concat("cpu", id);
    std::error_code error;
    if ((known && !CPU_ISSET(id, &allowed)) || !fs::exists(folder, error)) continue;
    const int core = first_number(folder / "topology/thread_siblings_list", id);
    const int socket = first_number(folder / "topology/physical_package_id", 0);
    cpus.push_back({.id = id,
                    .numa_node = numa_node_of(folder),
                    .socket = socket,
                    .core = core,
                    .core_complex = first_number(folder / "cache/index3/shared_cpu_list", core)});
  }
  return cpus;
}

std::vector<std::vector<int>> bind_workers(NumaBinding binding, const std::vector<LogicalCpu>& cpus,
                                           const std::vector<int>& gpu_numa_nodes, int workers) {
  std::vector<std::vector<int>> result(static_cast<size_t>(workers));
  if (binding == NumaBinding::kNone || cpus.empty()) return result;
  const std::vector<int> nodes = nodes_of_workers(cpus, gpu_numa_nodes, workers);
  std::map<int, size_t> seen;  // number of workers of a NUMA node so far
  for (size_t worker = 0; worker < result.size(); ++worker) {
    const int node = nodes[worker];
    const size_t place = seen[node]++;
    std::set<int> sockets, cores, complexes;
    for (const LogicalCpu& cpu : cpus) {
      if (cpu.numa_node != node) continue;
      sockets.insert(cpu.socket);
      cores.insert(cpu.core);
      complexes.insert(cpu.core_complex);
    }
    switch (binding) {
      case NumaBinding::kNone:
        break;
      case NumaBinding::kNode:
        result[worker] = ids_of(cpus, [&](const LogicalCpu& cpu) { return cpu.numa_node == node; });
        break;
      case NumaBinding::kSocket:
        result[worker] = ids_of(cpus, [&](const LogicalCpu& cpu) { return sockets.contains(cpu.socket); });
        break;
      case NumaBinding::kCoreComplex: {
        const int complex = *std::next(complexes.begin(), static_cast<int>(place % complexes.size()));
        result[worker] = ids_of(cpus, [&](const LogicalCpu& cpu) {
          return cpu.numa_node == node && cpu.core_complex == complex;
        });
        break;
      }
      case NumaBinding::kExclusive: {
        const auto sharers = static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node));
        if (cores.size() < sharers) {
          fail(ErrorKind::kUsage,
               "--numa-binding exclusive gives every worker a core of its own: ", "NUMA node ", node, " has ",
               cores.size(), " for ", sharers, " workers; start fewer workers or use --numa-binding node");
        }
        const auto first = std::next(cores.begin(), static_cast<int>(place * cores.size() / sharers));
        const auto last = std::next(cores.begin(), static_cast<int>((place + 1) * cores.size() / sharers));
        const std::set<int> own(first, last);
        result[worker] = ids_of(
            cpus, [&](const LogicalCpu& cpu) { return cpu.numa_node == node && own.contains(cpu.core); });
        break;
      }
    }
  }
  return result;
}

}  // namespace fsdp::launch
