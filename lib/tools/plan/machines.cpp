#include "tools/plan/machines.h"

#include <charconv>
#include <cmath>

#include "base/util/error.h"
#include "base/util/gpu_data_sheets.h"
#include "base/util/text.h"

namespace fsdp::plan {
namespace {

constexpr double kBitsOfByte = 8;
constexpr double kGiga = 1e9;
constexpr int64_t kGpusOfNode = 8;  ///< GPUs per node of most machines for training

const util::GpuDataSheet& sheet_of(const std::string& name) {
  const util::GpuDataSheet* sheet = util::gpu_data_sheet(name);
  if (sheet != nullptr) return *sheet;
  const std::vector<std::string> known = util::gpu_data_sheet_names();
  const std::string near = util::nearest_choice(name, known);
  fail(ErrorKind::kUsage, "`gpu` must be a GPU whose data sheet is known, but is ", name,
       near.empty() ? "; known are " + util::join(known, ", ") : "; did you mean " + near + "?");
}

/// Peak rate of matrix products in the config's type of compute.
double rate_of(const util::GpuDataSheet& sheet, const config::Config& config) {
  const std::string type = config.mixed_precision.param_dtype.name();
  const bool tf32 = config.mixed_precision.param_dtype == util::FloatType::kFloat32 &&
                    config.training.float32_matmul_precision == config::Float32Precision::kHigh;
  const double rate = sheet.dense_tflops(tf32 ? "tf32" : type);
  if (rate > 0) return rate;
  fail(ErrorKind::kUsage, "`gpu` must have matrix products in ", type, " (mixed_precision.param_dtype), but ",
       std::string(sheet.name), " has none; choose another type");
}

}  // namespace

double parse_tokens(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const std::string kUnits = "KMBT";
  const size_t at =
      unit.size() == 1 ? kUnits.find(static_cast<char>(std::toupper(unit[0]))) : std::string::npos;
  const bool counts = error == std::errc() && (unit.empty() || at != std::string::npos);
  if (counts && at != std::string::npos) value *= std::pow(1000.0, static_cast<double>(at + 1));
  if (!counts || !(value >= 1) || !std::isfinite(value)) {
    fail(ErrorKind::kUsage,
         "`tokens` must be a number of tokens with K, M, B or T after it, such as 15T, but is ",
         text.empty() ? "an empty argument" : text);
  }
  return value;
}

PlanOptions machines_of(const config::Config& config, const GivenMachines& given) {
  PlanOptions machines;
  machines.world_size = given.world_size;
  machines.bandwidth_gbps = given.bandwidth_gbps;
  machines.dcn_bandwidth_gbps = given.dcn_bandwidth_gbps;
  machines.host_memory_gib = given.host_memory_gib;
  const double efficiency = given.efficiency.value_or(kEfficiency);
  if (!(efficiency > 0 && efficiency <= 1)) {
    fail(ErrorKind::kUsage, "`efficiency` must be above 0 and at most 1, but is ", efficiency);
  }
  if (!given.gpu.empty()) {
    const util::GpuDataSheet& sheet = sheet_of(given.gpu);
    machines.gpu = sheet.name;
    machines.memory_gib = static_cast<double>(sheet.memory_bytes) / (1024.0 * 1024.0 * 1024.0);
    machines.node_bandwidth_gbps = sheet.link_bytes_per_second * kBitsOfByte / kGiga;
    machines.host_bandwidth_gbps = kHostShare * sheet.host_bytes_per_second * kBitsOfByte / kGiga;
    machines.gpus_per_node = kGpusOfNode;
    machines.peak_tflops = rate_of(sheet, config);
    machines.flops_tflops = efficiency * kProductsOfStep * machines.peak_tflops;
    machines.product_tflops = efficiency * machines.peak_tflops;
  }
  machines.memory_gib = given.memory_gib.value_or(machines.memory_gib);
  if (given.flops_tflops) machines.flops_tflops = machines.product_tflops = *given.flops_tflops;
  machines.node_bandwidth_gbps = given.node_bandwidth_gbps.value_or(machines.node_bandwidth_gbps);
  machines.host_bandwidth_gbps = given.host_bandwidth_gbps.value_or(machines.host_bandwidth_gbps);
  machines.gpus_per_node = given.gpus_per_node.value_or(machines.gpus_per_node);
  if (!given.tokens.empty()) machines.tokens = parse_tokens(given.tokens);
  if (given.node_bandwidth_gbps && machines.gpus_per_node == 0) {
    fail(ErrorKind::kUsage, "`node_bandwidth_gbps` requires `gpus_per_node`; add it");
  }
  return machines;
}

}  // namespace fsdp::plan
