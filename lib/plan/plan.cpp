#include "plan/plan.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "config/checks.h"
#include "config/global_batch.h"
#include "nn/decoder.h"
#include "nn/lora.h"
#include "plan/meta_group.h"
#include "shard/root_unit.h"
#include "shard/wrap_policy.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::plan {
namespace {

using util::concat;

constexpr double kBytesOfGib = 1024.0 * 1024.0 * 1024.0;
constexpr int64_t kMostRanks = 65536;
constexpr int64_t kMostRows = 100'000;  ///< limit of data.micro_batch_size

void check_machines(const PlanOptions& options) {
  const std::pair<const char*, double> numbers[] = {{"`memory_gib`", options.memory_gib},
                                                    {"`bandwidth_gbps`", options.bandwidth_gbps},
                                                    {"`dcn_bandwidth_gbps`", options.dcn_bandwidth_gbps},
                                                    {"`flops_tflops`", options.flops_tflops}};
  if (options.gpus_per_node < 0 || !(options.node_bandwidth_gbps >= 0) ||
      !std::isfinite(options.node_bandwidth_gbps)) {
    util::fail(util::ErrorKind::kUsage, "`gpus_per_node` and `node_bandwidth_gbps` must be above 0, but are ",
               options.gpus_per_node, " and ", options.node_bandwidth_gbps,
               "; leave them out for the default");
  }
  for (const auto& [name, value] : numbers) {
    if (value > 0 && std::isfinite(value)) continue;
    util::fail(util::ErrorKind::kUsage, name, " must be above 0, but is ", value,
               "; leave it out for the default");
  }
  if (options.world_size < 0 || options.world_size > std::numeric_limits<int>::max()) {
    util::fail(util::ErrorKind::kUsage, "`world_size` must be a number of ranks, but is ", options.world_size,
               "; leave it out if [mesh] gives every axis a size");
  }
}

int64_t largest_micro_batch(config::Config config, const std::vector<shard::UnitSizes>& units,
                            int64_t limit) {
  auto fits = [&](int64_t rows) {
    config.data.micro_batch_size = rows;
    return device_peak(config, units, record_pass(config)) <= limit;
  };
  if (!fits(1)) return 0;
  int64_t low = 1, high = 2;  // low fits
  while (high <= kMostRows && fits(high)) {
    low = high;
    high *= 2;
  }
  high = std::min(high, kMostRows + 1);
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

/// Tries changes that make a run smaller, cumulatively, the cheapest first.
class Adviser {
 public:
  Adviser(const config::Config& config, const comm::MeshShape& mesh, int64_t limit)
      : config_(config), mesh_(mesh), limit_(limit) {}

  std::vector<Advice> run() {
    if (blocks_out_of_root()) return advice_;
    if (config_.activation_checkpointing.mode == nn::RecomputeMode::kNone) {
      config_.activation_checkpointing.mode = nn::RecomputeMode::kFull;
      if (try_it("activation_checkpointing.mode = full")) return advice_;
    }
    if (shard::is_hybrid(config_.fsdp.strategy) && mesh_.dcn > 1 &&
        config_.fsdp.hybrid_optimizer == shard::HybridOptimizer::kReplicated) {
      config_.fsdp.hybrid_optimizer = shard::HybridOptimizer::kGlobal;
      if (try_it("fsdp.hybrid_optimizer = global")) return advice_;
    }
    if (config_.fsdp.strategy != shard::Strategy::kFullShard) {
      config_.fsdp.strategy = shard::Strategy::kFullShard;
      config_.fsdp.hybrid_optimizer = shard::HybridOptimizer::kReplicated;
      if (try_it("fsdp.strategy = full_shard")) return advice_;
    }
    if (smaller_micro_batch()) return advice_;
    if (config_.training.no_sync) {
      config_.training.no_sync = false;
      if (try_it("training.no_sync = false")) return advice_;
    }
    if (config_.mixed_precision.param_dtype == util::FloatType::kFloat32) {
      config_.mixed_precision.param_dtype = config_.mixed_precision.reduce_dtype = util::FloatType::kBFloat16;
      if (try_it("mixed_precision.param_dtype = mixed_precision.reduce_dtype = bfloat16")) return advice_;
    }
    if (more_ranks()) return advice_;
    if (!config_.fsdp.cpu_offload) {
      config_.fsdp.cpu_offload = config_.fsdp.move_grads_to_cpu = true;
      if (try_it("fsdp.cpu_offload = fsdp.move_grads_to_cpu = true")) return advice_;
    }
    if (config_.fsdp.min_num_params > 1) {
      // The buffers of the largest units remain beside the activations.
      config_.fsdp.min_num_params = 1;
      config_.fsdp.exclude_stages.clear();
      if (try_it("fsdp.min_num_params = 1, fsdp.exclude_stages = []")) return advice_;
    }
    while (config_.data.sequence_length >= 256 && config_.data.sequence_length % (4 * mesh_.context) == 0) {
      config_.data.sequence_length /= 2;
      if (try_it(concat("data.sequence_length = ", config_.data.sequence_length))) return advice_;
    }
    return advice_;
  }

 private:
  bool try_it(const std::string& change) {
    const int64_t peak = device_peak(config_, planned_units(config_, mesh_), record_pass(config_));
    advice_.push_back({.change = change, .device_peak = peak, .fits = peak <= limit_});
    return peak <= limit_;
  }

  /// Costs nothing.
  bool blocks_out_of_root() {
    const shard::BlocksInRoot blocks = shard::blocks_in_root(planned_units(config_, mesh_));
    if (blocks.blocks == 0 || blocks.least_numel >= config_.fsdp.min_num_params) return false;
    config_.fsdp.min_num_params = blocks.least_numel;
    return try_it(concat("fsdp.min_num_params = ", blocks.least_numel));
  }

  bool smaller_micro_batch() {
    if (config_.data.micro_batch_size == 1) return false;
    int64_t fits = largest_micro_batch(config_, planned_units(config_, mesh_), limit_);
    config_.data.micro_batch_size = std::max<int64_t>(1, std::min(fits, config_.data.micro_batch_size));
    while (!keeps_global_batch()) --config_.data.micro_batch_size;  // 1 keeps it
    return try_it(concat("data.micro_batch_size = ", config_.data.micro_batch_size));
  }

  /// Whether training.global_batch_size divides into whole micro-batches; sets their number in the config.
  bool keeps_global_batch() {
    const int64_t batch = config_.training.global_batch_size;
    const int64_t at_once = mesh_.row_ranks() * config_.data.micro_batch_size;
    if (batch == 0) return true;
    if (batch % at_once != 0) return false;
    config_.training.gradient_accumulation_steps = batch / at_once;
    return true;
  }

  /// Doubles the ranks until they are enough.
  bool more_ranks() {
    const comm::MeshShape before = mesh_;
    const RecordedPass pass = record_pass(config_);  // does not depend on the number of ranks
    while (mesh_.world_size() <= kMostRanks / 2) {
      mesh_.data *= 2;
      if (!keeps_global_batch()) break;
      if (device_peak(config_, planned_units(config_, mesh_), pass) > limit_) continue;
      return try_it(concat(mesh_.world_size(), " ranks"));
    }
    mesh_ = before;  // the most ranks are not enough
    keeps_global_batch();
    return false;
  }

  config::Config config_;
  comm::MeshShape mesh_;
  int64_t limit_;
  std::vector<Advice> advice_;
};

/// What it saves to keep frozen units gathered, where memory suffices; empty: nothing.
std::string kept_frozen_units(const Plan& plan, const RecordedPass& pass) {
  config::Config config = plan.config;
  if (!config.lora.is_on() || !shard::reshards(config.fsdp.strategy)) return {};
  config.fsdp.keep_after_forward = {"*"};
  const std::vector<shard::UnitSizes> units = planned_units(config, plan.mesh);
  const int64_t bytes = step_formula(config, units).traffic.all_gather_bytes;
  const int64_t before = plan.step.traffic.all_gather_bytes;
  const int64_t peak = device_peak(config, units, pass);
  if (bytes >= before || peak > plan.memory_limit()) return {};
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

int64_t Plan::memory_limit() const { return static_cast<int64_t>(machines.memory_gib * kBytesOfGib); }

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
    util::fail(util::ErrorKind::kUsage, "[mesh]: expected at most ", std::numeric_limits<int>::max(),
               " ranks; found ", mesh.dcn, " * ", mesh.data, " * ", mesh.context, " * ", mesh.model,
               "; make an axis smaller");
  }
  return static_cast<int>(product);
}

std::vector<shard::UnitSizes> planned_units(const config::Config& config, const comm::MeshShape& mesh) {
  const auto stages = nn::make_decoder(config.model, at::kMeta);
  if (config.lora.is_on()) nn::add_lora(*stages, config.lora);
  const auto parts =
      nn::parallelize_decoder(*stages, config.model, {.sequence_parallel = config.mesh.sequence_parallel},
                              std::make_shared<MetaGroup>(mesh.model, MetaGroup::Events{}));
  const nn::ModelOutline model = shard::make_model_tree(*stages, parts).outline;
  std::vector<shard::UnitSizes> units = unit_sizes(model, config::shard_options(config), mesh);
  // The first place of a parameter that is trained: what comes before it requires no gradient.
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

Plan make_plan(const config::Config& given, const PlanOptions& options) {
  Plan plan;
  plan.config = given;
  plan.machines = options;
  plan.machines.world_size = planned_world_size(given, options);
  plan.mesh = config::check_world(given, static_cast<int>(plan.machines.world_size));
  plan.config.mesh.context = plan.mesh.context;
  plan.config.mesh.model = plan.mesh.model;
  config::resolve_batch(plan.config, plan.machines.world_size);
  config::plan_largest_batches(plan.config);
  const config::Config& config = plan.config;
  plan.units = planned_units(config, plan.mesh);
  for (const shard::UnitSizes& unit : plan.units) {
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
  plan.time = plan_time(config, plan.units,
                        {.flops_per_second = options.flops_tflops * 1e12,
                         .bytes_per_second = options.bandwidth_gbps * 1e9 / 8,
                         .replica_bytes_per_second = options.dcn_bandwidth_gbps * 1e9 / 8,
                         .ranks_of_node = options.gpus_per_node,
                         .node_bytes_per_second = options.node_bandwidth_gbps * 1e9 / 8},
                        pass);
  plan.flops =
      flops_a_token(config.model, config.data.sequence_length, config.activation_checkpointing, config.lora);
  plan.largest_micro_batch = largest_micro_batch(config, plan.units, plan.memory_limit());
  const std::string blocks = shard::blocks_in_root(plan.units).text(config.fsdp.min_num_params);
  if (!blocks.empty()) plan.warnings.push_back(blocks);
  if (const std::string kept = kept_frozen_units(plan, pass); !kept.empty()) plan.warnings.push_back(kept);
  if (!plan.fits()) plan.advice = Adviser(config, plan.mesh, plan.memory_limit()).run();
  return plan;
}

}  // namespace fsdp::plan
