#include "tools/plan/plan.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/nn/decoder.h"
#include "model/nn/lora.h"
#include "setup/config/checks.h"
#include "setup/config/global_batch.h"
#include "setup/config/second_model.h"
#include "shard/engine/wrap_policy.h"
#include "shard/units/root_unit.h"
#include "tools/plan/logits.h"
#include "tools/plan/meta_group.h"

namespace fsdp::plan {

namespace {

constexpr double kBytesOfGib = 1024.0 * 1024.0 * 1024.0;
constexpr int64_t kMostRows = 100'000;   ///< limit of data.micro_batch_size
constexpr int64_t kMostSamples = 1024;   ///< limit with sums by sample
constexpr int64_t kMostEvents = 50'000;  ///< events of a pass after which larger ones are not recorded

void check_machines(const PlanOptions& options) {
  const std::pair<const char*, double> numbers[] = {{"`memory_gib`", options.memory_gib},
                                                    {"`bandwidth_gbps`", options.bandwidth_gbps},
                                                    {"`dcn_bandwidth_gbps`", options.dcn_bandwidth_gbps},
                                                    {"`host_bandwidth_gbps`", options.host_bandwidth_gbps},
                                                    {"`host_memory_gib`", options.host_memory_gib},
                                                    {"`flops_tflops`", options.flops_tflops}};
  if (options.gpus_per_node < 0 || !(options.node_bandwidth_gbps >= 0) ||
      !std::isfinite(options.node_bandwidth_gbps)) {
    fail(ErrorKind::kUsage, "`gpus_per_node` and `node_bandwidth_gbps` must be above 0, but are ",
         options.gpus_per_node, " and ", options.node_bandwidth_gbps, "; leave them out for the default");
  }
  for (const auto& [name, value] : numbers) {
    if (value > 0 && std::isfinite(value)) continue;
    fail(ErrorKind::kUsage, name, " must be above 0, but is ", value, "; leave it out for the default");
  }
  if (options.world_size < 0 || options.world_size > std::numeric_limits<int>::max()) {
    fail(ErrorKind::kUsage, "`world_size` must be a number of ranks, but is ", options.world_size,
         "; leave it out if [mesh] gives every axis a size");
  }
}

}  // namespace

MachineSpeed PlanOptions::speed() const {
  return {.flops_per_second = flops_tflops * 1e12,
          .bytes_per_second = bandwidth_gbps * 1e9 / 8,
          .replica_bytes_per_second = dcn_bandwidth_gbps * 1e9 / 8,
          .ranks_of_node = gpus_per_node,
          .node_bytes_per_second = node_bandwidth_gbps * 1e9 / 8,
          .host_bytes_per_second = host_bandwidth_gbps * 1e9 / 8,
          .host_memory_bytes = host_memory_gib * kBytesOfGib};
}

namespace {

/// Searches the largest micro-batch. Peaks grow with the rows, nearly in proportion, so the search goes where
/// the line through two known peaks meets the limit, and halves the rest of the range when that does not
/// help. A pass whose events grow with its rows, such as attention within documents, is recorded for few rows
/// only; the line is continued from there.
class MicroBatchSearch {
 public:
  MicroBatchSearch(config::Config config, const Units& units, int64_t limit)
      : config_(std::move(config)), units_(units), limit_(limit) {}

  int64_t largest() {
    if (!fits(1)) return 0;
    // Sums by sample: only powers of two are tried, because other numbers are divided
    // (config::resolve_batch()), and no large ones, because a pass is recorded sample by sample.
    const bool by_sample = config_.training.reproducible == config::Reproducible::kWorldSize;
    const int64_t most = by_sample ? kMostSamples : kMostRows;
    while (2 * low_.rows <= most && fits(2 * low_.rows)) {
      if (!by_sample && is_long() && is_on_a_line()) {
        return std::clamp(crossing(before_, low_), low_.rows, most);
      }
    }
    if (by_sample) return low_.rows;
    if (high_.rows == 0 && fits(most)) return most;
    narrow();
    return low_.rows;
  }

 private:
  struct Peak {
    int64_t rows = 0;  ///< 0: not known yet
    int64_t bytes = 0;
    int64_t events = 0;  ///< events of the recorded pass
  };

  /// Records the pass of so many rows, and moves the end of the range that it proves.
  bool fits(int64_t rows) {
    config_.data.micro_batch_size = rows;
    const RecordedPass pass = record_pass(config_);
    const Peak peak{rows, device_peak(config_, units_, pass), pass.number_of_events()};
    if (peak.bytes > limit_) {
      high_ = peak;
      return false;
    }
    first_ = std::exchange(before_, std::exchange(low_, peak));
    return true;
  }

  /// Whether the last pass was long because it has many rows.
  bool is_long() const { return low_.events > kMostEvents && 2 * low_.events > 3 * before_.events; }

  /// Whether the last three peaks that fit are on a line.
  bool is_on_a_line() const {
    constexpr double kTolerance = 1e-3;
    if (first_.rows == 0) return false;
    const double slope = bytes_of_row(before_, low_);
    return slope > 0 && std::abs(bytes_of_row(first_, before_) - slope) <= kTolerance * slope;
  }

  static double bytes_of_row(const Peak& a, const Peak& b) {
    return static_cast<double>(b.bytes - a.bytes) / static_cast<double>(b.rows - a.rows);
  }

  /// The most rows that fit, by the line through two peaks.
  int64_t crossing(const Peak& a, const Peak& b) const {
    const double slope = bytes_of_row(a, b);
    if (!(slope > 0)) return kMostRows;
    const double rows = static_cast<double>(limit_ - a.bytes) / slope;
    return a.rows + static_cast<int64_t>(std::min(rows, static_cast<double>(kMostRows)));
  }

  /// Makes the range one row long.
  void narrow() {
    for (int step = 0; high_.rows - low_.rows > 1; ++step) {
      const bool halves = step % 3 == 2;
      const int64_t middle = low_.rows + (high_.rows - low_.rows) / 2;
      const int64_t met = halves ? middle : crossing(low_, high_);
      const int64_t rows = std::clamp(met, low_.rows + 1, high_.rows - 1);
      // If the line meets the limit at `rows`, the next row does not fit.
      if (fits(rows) && !halves && high_.rows - low_.rows > 1) fits(rows + 1);
    }
  }

  config::Config config_;
  const Units& units_;
  const int64_t limit_;
  Peak low_, high_;      ///< the most rows known to fit, and the fewest known not to
  Peak before_, first_;  ///< the values of low_ before
};

}  // namespace

int64_t largest_micro_batch(config::Config config, const Units& units, int64_t limit) {
  return MicroBatchSearch(std::move(config), units, limit).largest();
}

namespace {

/// Advice to keep frozen units gathered, if memory suffices and traffic is saved; otherwise empty.
std::string kept_frozen_units(const Plan& plan) {
  config::Config config = plan.config;
  if (!config.lora.is_on() || !shard::reshards(config.fsdp.strategy)) return {};
  config.fsdp.keep_after_forward = {"*"};
  const Units units = planned_units(config, plan.mesh);
  const int64_t bytes = step_formula(config, units).traffic.all_gather_bytes;
  const int64_t before = plan.step.traffic.all_gather_bytes;
  if (bytes >= before) return {};
  const int64_t peak = device_peak(config, units, record_pass(config));
  if (peak > plan.memory_limit()) return {};
  return concat("frozen units can stay gathered for a whole step, with ", util::human_bytes(peak),
                " of memory: all-gathers then send ", util::human_bytes(bytes),
                " a rank and step instead of ", util::human_bytes(before),
                "; set fsdp.keep_after_forward = [\"*\"]");
}

}  // namespace

int64_t Plan::tokens_per_step() const {
  return config::samples_per_step(config, machines.world_size) * config.data.sequence_length;
}

double Plan::tokens_per_second() const {
  return time.step() > 0 ? static_cast<double>(tokens_per_step()) / time.step() : 0;
}

int64_t Plan::memory_limit() const {
  return static_cast<int64_t>(machines.memory_gib * kBytesOfGib) - memory.beside();
}

int planned_world_size(const config::Config& config, const PlanOptions& options) {
  check_machines(options);
  if (options.world_size > 0) return static_cast<int>(options.world_size);
  const comm::MeshOptions& mesh = config.mesh;
  if (mesh.dcn < 1 || mesh.data < 1 || mesh.context < 1 || mesh.model < 1) return 1;
  int64_t product = 0;
  bool counts = !__builtin_mul_overflow(mesh.dcn, mesh.data, &product) &&
                !__builtin_mul_overflow(product, mesh.context, &product) &&
                !__builtin_mul_overflow(product, mesh.model, &product);
  if (!counts || product > std::numeric_limits<int>::max()) {
    fail(ErrorKind::kUsage, "[mesh]: expected at most ", std::numeric_limits<int>::max(), " ranks; found ",
         mesh.dcn, " * ", mesh.data, " * ", mesh.context, " * ", mesh.model, "; make an axis smaller");
  }
  return static_cast<int>(product);
}

Units planned_units(const config::Config& config, const comm::MeshShape& mesh) {
  const auto stages = nn::make_decoder(config.model, at::kMeta);
  if (config.lora.is_on()) nn::add_lora(*stages, config.lora);
  const auto parts =
      nn::parallelize_decoder(*stages, config.model, {.sequence_parallel = config.mesh.sequence_parallel},
                              std::make_shared<MetaGroup>(mesh.model, MetaGroup::Events{}));
  const nn::ModelOutline model = shard::make_model_tree(*stages, parts).outline;
  Units units =
      unit_sizes(model, config::shard_options(config, is_for_gpu(config)), mesh_of_step(config, mesh));
  // The first node with a trainable parameter: nodes before it require no gradient.
  size_t first_trained = model.nodes.size();
  for (const nn::OutlineParameter& parameter : model.parameters) {
    if (parameter.requires_grad) first_trained = std::min(first_trained, parameter.nodes.front());
  }
  for (size_t node = 1; node < model.nodes.size(); ++node) {
    for (shard::UnitSizes& unit : units) {
      if (unit.name != model.nodes[node].path) continue;
      // Token ids require no gradient either, so the end of an embedding's backward cannot be seen.
      unit.input_is_differentiable = first_trained < node && model.nodes[node].type != "embedding";
      unit.output_is_differentiable = first_trained < model.nodes[node].end;
    }
  }
  return units;
}

namespace {

/// Returns the bytes of the second model's shards, and of what its units gather from.
int64_t frozen_bytes(const config::Config& config, const comm::MeshShape& mesh) {
  const auto second = config::second_model(config);
  if (!second) return 0;
  int64_t bytes = 0;
  for (const shard::UnitSizes& unit : planned_units(second->config, mesh)) {
    bytes += unit.shard_bytes() + unit.source_bytes();
  }
  return bytes;
}

}  // namespace

Plan plan_needs(const config::Config& given, const PlanOptions& options) {
  Plan plan;
  plan.config = given;
  plan.machines = options;
  plan.machines.world_size = planned_world_size(given, options);
  const int64_t of_node = plan.machines.gpus_per_node;
  plan.config.mesh.ranks_of_host = of_node < plan.machines.world_size ? of_node : 0;
  plan.mesh = config::check_world(plan.config, static_cast<int>(plan.machines.world_size));
  plan.config.mesh.context = plan.mesh.context;
  plan.config.mesh.model = plan.mesh.model;
  config::resolve_batch(plan.config, plan.machines.world_size);
  config::plan_largest_batches(plan.config);
  if (nn::has_budget(plan.config.activation_checkpointing.mode)) {
    plan.recomputation = choose_recomputation(plan.config, options.speed());
    plan.config.activation_checkpointing = plan.recomputation.options;
  }
  const int64_t frozen = plan.memory.frozen = frozen_bytes(plan.config, plan.mesh);
  plan.units = planned_units(plan.config, plan.mesh);
  const auto outer = [&](double step_seconds) {
    return plan_outer(plan.config, plan.mesh, plan.units, options.speed(), step_seconds);
  };
  const int64_t outer_bytes = plan.memory.outer = outer(0).bytes();
  plan.config.model.logits_mib = choose_logits_mib(plan.config, plan.mesh, plan.memory_limit());
  const config::Config& config = plan.config;
  config::Config counted = config;
  counted.lora.quantize = nn::BaseQuantization::kNone;  // bytes are no parameters
  for (const shard::UnitSizes& unit :
       config.lora.quantize == nn::BaseQuantization::kNone ? plan.units : planned_units(counted, plan.mesh)) {
    for (const shard::ParameterSizes& parameter : unit.parameters) {
      plan.parameters += c10::multiply_integers(parameter.shape);
    }
  }
  plan.step = step_formula(config, plan.units);
  plan.optimizer_traffic = optimizer_traffic(config.optimizer, plan.units);
  plan.attention_traffic = attention_traffic(config, plan.mesh);
  plan.layer_traffic = layer_traffic(config, plan.mesh);
  const RecordedPass pass = record_pass(config);
  plan.memory = plan_memory(config, plan.units, pass);
  plan.memory.frozen = frozen;
  plan.memory.outer = outer_bytes;
  plan.time = plan_time(config, plan.units, options.speed(), pass);
  plan.outer = outer(plan.time.step());
  plan.time.exchange = plan.outer.exposed_seconds_per_step();
  plan.flops =
      flops_a_token(config.model, config.data.sequence_length, config.activation_checkpointing, config.lora);
  return plan;
}

Plan make_plan(const config::Config& given, const PlanOptions& options) {
  Plan plan = plan_needs(given, options);
  config::Config of_any_batch = plan.config;
  of_any_batch.model.logits_mib = given.model.logits_mib;
  plan.largest_micro_batch = largest_micro_batch(std::move(of_any_batch), plan.units, plan.memory_limit());
  const std::string blocks = shard::blocks_in_root(plan.units).text(plan.config.fsdp.min_num_params);
  if (!blocks.empty()) plan.warnings.push_back(blocks);
  if (const std::string kept = kept_frozen_units(plan); !kept.empty()) plan.warnings.push_back(kept);
  if (plan.memory.frozen > 0) {
    plan.warnings.emplace_back(
        "the time does not include the forward of the second model, which is about a third of a step if it is as "
        "large as the trained one");
  }
  if (!plan.fits()) plan.advice = advise(plan, given);
  return plan;
}

}  // namespace fsdp::plan
