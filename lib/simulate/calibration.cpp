#include "simulate/calibration.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace fsdp::simulate {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = kernels::MetaProduct::Kind;

constexpr const char* kFormat = "fsdp calibration 1";
constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::kPlain, "plain"}, {Kind::kFloat8, "float8"}, {Kind::kAttention, "attention"}};
constexpr util::JsonLimits kLimits = {.deepest_level = 8, .most_values = 100'000};

ordered_json json_of(const Link& link) {
  return {{"latency_seconds", link.latency_seconds},
          {"bytes_per_second", link.bytes_per_second},
          {"core_seconds_per_byte", link.core_seconds_per_byte}};
}

ordered_json json_of(const NetworkTable& network) {
  return {{"name", network.name},
          {"inside", json_of(network.inside)},
          {"between", json_of(network.between)},
          {"slices", json_of(network.slices)},
          {"base_seconds", network.base_seconds},
          {"copy_bytes_per_second", network.copy_bytes_per_second},
          {"sum_bytes_per_second", network.sum_bytes_per_second}};
}

ordered_json json_of(const ProductRate& rate) {
  const char* kind = "";
  for (const auto& [known, name] : kKinds) {
    if (known == rate.shape.kind) kind = name;
  }
  return {{"m", rate.shape.m},
          {"n", rate.shape.n},
          {"k", rate.shape.k},
          {"kind", kind},
          {"flops_per_second", rate.flops_per_second}};
}

/// Members of an object of the file, each of which must be there.
class Reader {
 public:
  Reader(const json& object, std::string name, const std::string& source)
      : object_(object), name_(std::move(name)), source_(source) {
    if (!object.is_object()) fail("must be an object, but is " + object.dump());
  }

  Reader inside(const std::string& key) const { return {member(key), name_ + key + ".", source_}; }
  const json& member(const std::string& key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key + " is missing");
    return *found;
  }
  std::string text(const std::string& key) const {
    const json& value = member(key);
    if (!value.is_string()) fail(key + " must be a string, but is " + value.dump());
    return value.get<std::string>();
  }
  double number(const std::string& key, bool above_zero = false) const {
    const json& value = member(key);
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!std::isfinite(number) || number < 0 || (above_zero && number == 0)) {
      fail(key + " must be a number " + (above_zero ? "above 0" : "of at least 0") + ", but is " +
           value.dump());
    }
    return number;
  }
  int64_t count(const std::string& key, bool above_zero) const {
    return static_cast<int64_t>(number(key, above_zero));
  }
  [[noreturn]] void fail(const std::string& what) const {
    util::fail(util::ErrorKind::kUsage,
               "`calibration` must be a file of fsdp-train doctor --calibrate, but in ", source_, " ", name_,
               what, "; measure again");
  }

 private:
  const json& object_;
  std::string name_;
  const std::string& source_;
};

Link read_link(const Reader& reader) {
  return {.latency_seconds = reader.number("latency_seconds"),
          .bytes_per_second = reader.number("bytes_per_second"),
          .core_seconds_per_byte = reader.number("core_seconds_per_byte")};
}

NetworkTable read_network(const Reader& reader) {
  return {.name = reader.text("name"),
          .source = "measured",
          .inside = read_link(reader.inside("inside")),
          .between = read_link(reader.inside("between")),
          .slices = read_link(reader.inside("slices")),
          .base_seconds = reader.number("base_seconds"),
          .copy_bytes_per_second = reader.number("copy_bytes_per_second"),
          .sum_bytes_per_second = reader.number("sum_bytes_per_second")};
}

ProductRate read_rate(const Reader& reader) {
  std::optional<Kind> kind;
  for (const auto& [known, name] : kKinds) {
    if (name == reader.text("kind")) kind = known;
  }
  if (!kind) reader.fail("kind must be plain, float8 or attention, but is " + reader.text("kind"));
  return {.shape = {.m = reader.count("m", true),
                    .n = reader.count("n", true),
                    .k = reader.count("k", true),
                    .kind = *kind},
          .flops_per_second = reader.number("flops_per_second", true)};
}

ComputeTable read_compute(const Reader& reader, const std::string& source) {
  ComputeTable table{
      .machine = reader.text("machine"),
      .source = "measured",
      .dtype = reader.text("dtype"),
      .threads = reader.count("threads", false),
      .element_bytes = reader.number("element_bytes", true),
      .products = {},
      .flops_per_second = reader.number("flops_per_second"),
      .memory_bytes_per_second = reader.number("memory_bytes_per_second"),
      .elementwise_bytes_per_second = reader.number("elementwise_bytes_per_second", true),
      .loss_bytes_per_second = reader.number("loss_bytes_per_second", true),
      .optimizer_bytes_per_second = reader.number("optimizer_bytes_per_second", true),
      .norm_bytes_per_second = reader.number("norm_bytes_per_second", true),
      .host_seconds = reader.number("host_seconds"),
      .scale = reader.number("scale", true),
  };
  const json& products = reader.member("products");
  if (!products.is_array() || products.empty()) reader.fail("products must be a list with a product in it");
  for (const json& product : products) table.products.push_back(read_rate({product, "products: ", source}));
  return table;
}

}  // namespace

std::string calibration_json(const Calibration& calibration) {
  const ComputeTable& compute = calibration.compute;
  ordered_json products = ordered_json::array(), networks = ordered_json::object();
  for (const ProductRate& rate : compute.products) products.push_back(json_of(rate));
  for (const auto& [backend, network] : calibration.networks) networks[backend] = json_of(network);
  const ordered_json file = {{"format", kFormat},
                             {"cores_of_host", calibration.cores_of_host},
                             {"compute",
                              {{"machine", compute.machine},
                               {"dtype", compute.dtype},
                               {"threads", compute.threads},
                               {"element_bytes", compute.element_bytes},
                               {"flops_per_second", compute.flops_per_second},
                               {"memory_bytes_per_second", compute.memory_bytes_per_second},
                               {"elementwise_bytes_per_second", compute.elementwise_bytes_per_second},
                               {"loss_bytes_per_second", compute.loss_bytes_per_second},
                               {"optimizer_bytes_per_second", compute.optimizer_bytes_per_second},
                               {"norm_bytes_per_second", compute.norm_bytes_per_second},
                               {"host_seconds", compute.host_seconds},
                               {"scale", compute.scale},
                               {"products", std::move(products)}}},
                             {"networks", std::move(networks)}};
  return file.dump(2) + "\n";
}

Calibration parse_calibration(const std::string& text, const std::string& source) {
  json file;
  try {
    file = util::parse_json(text, kLimits);
  } catch (const util::JsonError& error) {
    util::fail(util::ErrorKind::kUsage, "`calibration` must be a file of fsdp-train doctor --calibrate, but ",
               source, " ", error.what());
  }
  const Reader reader(file, "", source);
  if (reader.text("format") != kFormat) {
    reader.fail(util::concat("format must be \"", kFormat, "\", but is ", reader.member("format").dump()));
  }
  Calibration calibration{.cores_of_host = reader.number("cores_of_host"),
                          .compute = read_compute(reader.inside("compute"), source),
                          .networks = {}};
  const json& networks = reader.member("networks");
  if (!networks.is_object()) reader.fail("networks must be an object");
  for (const auto& [backend, network] : networks.items()) {
    calibration.networks[backend] = read_network({network, "networks." + backend + ".", source});
  }
  return calibration;
}

Calibration read_calibration(const std::filesystem::path& path) {
  return parse_calibration(util::read_file(path), path.string());
}

}  // namespace fsdp::simulate
