#include "tools/simulate/calibration.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"

namespace fsdp::kernels {

constexpr auto kNoKind = static_cast<kernels::ProductKind>(-1);
NLOHMANN_JSON_SERIALIZE_ENUM(kernels::ProductKind, {{kNoKind, nullptr},
                                                    {kernels::ProductKind::kPlain, "plain"},
                                                    {kernels::ProductKind::kFloat8, "float8"},
                                                    {kernels::ProductKind::kAttention, "attention"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MetaProduct, m, n, k, kind)

}  // namespace fsdp::kernels

namespace fsdp::simulate {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, latency_seconds, ring_latency_seconds, latency_beside_compute,
                                   bytes_per_second, core_seconds_per_byte, speed_beside_compute)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkTable, name, source, inside, between, slices, base_seconds,
                                   core_seconds, copy_bytes_per_second, sum_bytes_per_second,
                                   encode_bytes_per_second, decode_bytes_per_second)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProductRate, shape, flops_per_second)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ComputeTable, machine, source, dtype, threads, element_bytes, products,
                                   flops_per_second, memory_bytes_per_second, elementwise_bytes_per_second,
                                   loss_bytes_per_second, optimizer_bytes_per_second, norm_bytes_per_second,
                                   host_seconds, scale)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Calibration, cores_of_host, compute, networks)

namespace {

constexpr const char* kFormat = "fsdp calibration 1";
constexpr util::JsonLimits kLimits = {.deepest_level = 8, .most_values = 100'000};

[[noreturn]] void refuse(const std::string& source, const std::string& found) {
  fail(ErrorKind::kUsage, "`calibration` must be a file of fsdp-train doctor --calibrate, but ", source, " ",
       found, "; measure again");
}

/// Refuses rates that are no divisors.
void check_rates(const Calibration& calibration, const std::string& source) {
  const ComputeTable& compute = calibration.compute;
  const auto is_rate = [](double rate) { return std::isfinite(rate) && rate > 0; };
  for (const auto& [name, rate] :
       {std::pair("elementwise_bytes_per_second", compute.elementwise_bytes_per_second),
        std::pair("loss_bytes_per_second", compute.loss_bytes_per_second),
        std::pair("optimizer_bytes_per_second", compute.optimizer_bytes_per_second),
        std::pair("norm_bytes_per_second", compute.norm_bytes_per_second),
        std::pair("scale", compute.scale)}) {
    if (!is_rate(rate))
      refuse(source, concat("has a compute.", name, " of ", rate, ", which must be above 0"));
  }
  const auto is_measured = [&](const ProductRate& product) {
    const auto& [m, n, k, kind] = product.shape;
    return std::min({m, n, k}) > 0 && kind != kernels::kNoKind && is_rate(product.flops_per_second);
  };
  if (compute.products.empty() || !std::ranges::all_of(compute.products, is_measured)) {
    refuse(source, "has a product without shape or rate in compute.products, or none");
  }
}

}  // namespace

std::string calibration_json(const Calibration& calibration) {
  nlohmann::json file = calibration;
  file["format"] = kFormat;
  return file.dump(2) + "\n";
}

Calibration parse_calibration(const std::string& text, const std::string& source) {
  try {
    const nlohmann::json file = util::parse_json(text, kLimits);
    if (!file.is_object() || file.value("format", "") != kFormat) {
      refuse(source, concat("has no \"format\": \"", kFormat, "\""));
    }
    const auto calibration = file.get<Calibration>();
    check_rates(calibration, source);
    return calibration;
  } catch (const util::JsonError& error) {
    refuse(source, error.what());
  } catch (const nlohmann::json::exception& error) {
    refuse(source, concat("has other members (", error.what(), ")"));
  }
}

Calibration read_calibration(const std::filesystem::path& path) {
  return parse_calibration(util::read_file(path), path.string());
}

}  // namespace fsdp::simulate
