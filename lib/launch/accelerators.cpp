#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "launch/node_hardware.h"

namespace fsdp::launch {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// "nvidia7": a device, unlike "nvidiactl".
bool is_device(const std::string& name) {
  const std::string kind = "nvidia";
  return name.size() > kind.size() && name.starts_with(kind) &&
         name.find_first_not_of("0123456789", kind.size()) == std::string::npos;
}

/// CUDA_VISIBLE_DEVICES up to the first entry that is negative or empty, as CUDA reads it.
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

}  // namespace

int gpu_count() {
  const std::vector<std::string> names = names_in("/dev");
  const int devices = static_cast<int>(std::count_if(names.begin(), names.end(), is_device));
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
    chosen.push_back(by_number && index < nodes.size() ? nodes[index] : -1);  // else by UUID
  }
  return nodes.empty() ? nodes : chosen;
}

}  // namespace fsdp::launch
