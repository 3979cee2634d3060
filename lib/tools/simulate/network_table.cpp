#include "tools/simulate/network_table.h"

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::simulate {
namespace {

constexpr std::string_view kInfiniBand =
    "four lanes of InfiniBand's generations EDR 100, HDR 200, NDR 400 and XDR 800 Gbit/s (InfiniBand Trade "
    "Association); latency of a step of NCCL's ring (tuning.cc)";
constexpr std::string_view kRoce =
    "the rate in the name, as InfiniBand's: RoCE carries the same messages over Ethernet; latency of a step of "
    "NCCL's ring (tuning.cc)";
constexpr std::string_view kTcp =
    "the rate in the name; latency assumed, of a message through the sockets of two kernels";
constexpr double kTcpLatency = 50e-6;
constexpr std::string_view kLan =
    "the rate in the name is a host's, shared by its ranks; latency assumed, of the switch of a home or an office";
constexpr double kLanLatency = 100e-6;
constexpr std::string_view kWan =
    "the rate in the name is a host's, shared by its ranks; latency assumed, between homes of one country";
constexpr double kWanLatency = 10e-3;

}  // namespace

const Link& NetworkTable::at(Level level) const {
  const Link* const links[] = {&inside, &between, &slices};
  return *links[static_cast<size_t>(level)];
}

const std::vector<NetworkPreset>& network_presets() {
  static const std::vector<NetworkPreset> presets = {
      {"ib-100", 100, kNetworkLatency, kInfiniBand},
      {"ib-200", 200, kNetworkLatency, kInfiniBand},
      {"ib-400", 400, kNetworkLatency, kInfiniBand},
      {"ib-800", 800, kNetworkLatency, kInfiniBand},
      {"roce-100", 100, kNetworkLatency, kRoce},
      {"roce-200", 200, kNetworkLatency, kRoce},
      {"roce-250", 250, kNetworkLatency, kRoce},
      {"roce-400", 400, kNetworkLatency, kRoce},
      {"tcp-10", 10, kTcpLatency, kTcp},
      {"tcp-25", 25, kTcpLatency, kTcp},
      {"tcp-100", 100, kTcpLatency, kTcp},
      {"lan-1", 1, kLanLatency, kLan, true},
      {"lan-2.5", 2.5, kLanLatency, kLan, true},
      {"lan-10", 10, kLanLatency, kLan, true},
      {"wan-0.1", 0.1, kWanLatency, kWan, true},
      {"wan-1", 1, kWanLatency, kWan, true},
  };
  return presets;
}

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const NetworkPreset& preset : network_presets()) names.emplace_back(preset.name);
  return names;
}

const NetworkPreset& network_preset(const std::string& name) {
  for (const NetworkPreset& preset : network_presets()) {
    if (preset.name == name) return preset;
  }
  const std::string near = util::nearest_choice(name, network_names());
  fail(ErrorKind::kUsage, "`network` must be a network whose rate is known, but is ", name,
       near.empty() ? "; known are " + util::join(network_names(), ", ") : "; did you mean " + near + "?");
}

}  // namespace fsdp::simulate
