#pragma once

// The machines of a plan as given on a command line: by numbers, or by the name of a GPU.

#include <cstdint>
#include <optional>
#include <string>

#include "setup/config/config.h"
#include "tools/plan/plan.h"

namespace fsdp::plan {

/// Default share of the data sheet's rate that large matrix products reach; assumed.
inline constexpr double kEfficiency = 0.7;
/// Share of matrix products in a step's compute; assumed. A plan times products alone (tools/plan/time.h), so
/// its rate is lower by this share than that of a simulation, which times everything else by itself.
inline constexpr double kProductsOfStep = 0.5 / 0.7;

/// Share of the data sheet's rate that copies between a device and its host reach; assumed.
inline constexpr double kHostShare = 0.8;

/// Values that are not given come from the data sheet of `gpu`, or are the defaults of PlanOptions.
struct GivenMachines {
  int64_t world_size = 0;
  std::string gpu = {};  ///< name for util::gpu_data_sheet(); empty: none
  /// Share of the data sheet's rate that matrix products sustain; default: kEfficiency.
  std::optional<double> efficiency = {};
  std::optional<double> memory_gib = {}, flops_tflops = {}, node_bandwidth_gbps = {};
  std::optional<int64_t> gpus_per_node = {};  ///< default with a gpu: 8
  double bandwidth_gbps = PlanOptions{}.bandwidth_gbps;
  double host_memory_gib = PlanOptions{}.host_memory_gib;
  double dcn_bandwidth_gbps = PlanOptions{}.dcn_bandwidth_gbps;
  /// Default with a gpu: kHostShare of its data sheet's rate.
  std::optional<double> host_bandwidth_gbps = {};
  std::string tokens = {};  ///< "15T"; empty: none
};

/// Throws Error(kUsage) for a GPU that is unknown or has no products in the config's type, and for impossible
/// numbers.
PlanOptions machines_of(const config::Config& config, const GivenMachines& given);

/// "15T" -> 15e12, with K, M, B or T for thousand, million, billion or trillion. Throws Error(kUsage).
double parse_tokens(const std::string& text);

}  // namespace fsdp::plan
