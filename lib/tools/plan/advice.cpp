#include <algorithm>
#include <optional>
#include <utility>

#include "base/util/error.h"
#include "setup/config/checks.h"
#include "setup/config/global_batch.h"
#include "shard/units/root_unit.h"
#include "state/groups/parameter_groups.h"
#include "tools/plan/plan.h"

namespace fsdp::plan {
namespace {

constexpr int kMostRanks = 65536;
/// Most ranks that share sequences or layers: beyond a few hosts, compute does not hide their communication.
constexpr int kLargestGroup = 128;

/// Tries changes that make a run smaller, cumulatively.
class Adviser {
 public:
  Adviser(const Plan& plan, const config::Config& given)
      : run_{plan.config, plan.mesh},
        max_tokens_(given.data.max_tokens),
        data_is_rest_(given.mesh.data == -1),
        cut_sequences_(given.mesh.sequence_parallel),
        speed_(plan.machines.speed()),
        limit_(plan.memory_limit()) {}

  std::vector<Advice> run() {
    config::Config& config = run_.config;
    if (blocks_out_of_root()) return advice_;
    const bool keeps_copies = std::ranges::any_of(planned_units(config, run_.mesh), [](const auto& unit) {
      return unit.options.storage.keeps_low_precision_shard;
    });
    if (keeps_copies) {
      const auto before =
          std::exchange(config.mixed_precision.keep_low_precision_shards, config::KeepChoice::kFalse);
      if (try_it("mixed_precision.keep_low_precision_shards = false")) return advice_;
      // It frees little, so that it belongs to the changes only if it is enough.
      config.mixed_precision.keep_low_precision_shards = before;
      advice_.pop_back();
    }
    if (config.activation_checkpointing.mode != nn::RecomputeMode::kFull) {
      config.activation_checkpointing.mode = nn::RecomputeMode::kFull;
      if (try_it("activation_checkpointing.mode = full")) return advice_;
    }
    if (inputs_in_host_memory()) return advice_;
    if (shard::is_hybrid(config.fsdp.strategy) && run_.mesh.dcn > 1 &&
        config.fsdp.hybrid_optimizer == shard::HybridOptimizer::kReplicated) {
      config.fsdp.hybrid_optimizer = shard::HybridOptimizer::kGlobal;
      if (try_it("fsdp.hybrid_optimizer = global")) return advice_;
    }
    if (config.fsdp.strategy != shard::Strategy::kFullShard) {
      config.fsdp.strategy = shard::Strategy::kFullShard;
      config.fsdp.hybrid_optimizer = shard::HybridOptimizer::kReplicated;
      if (try_it("fsdp.strategy = full_shard")) return advice_;
    }
    if (smaller_micro_batch()) return advice_;
    if (config.training.no_sync) {
      config.training.no_sync = false;
      if (try_it("training.no_sync = false")) return advice_;
    }
    if (config.mixed_precision.param_dtype == util::FloatType::kFloat32) {
      config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = util::FloatType::kBFloat16;
      if (try_it("mixed_precision.param_dtype = mixed_precision.reduce_dtype = bfloat16")) return advice_;
    }
    if (can_have_states_in_8_bits()) {
      const auto before = std::exchange(config.optimizer.state_dtype, optim::StateType::kInt8);
      if (try_it("optimizer.state_dtype = int8")) return advice_;
      // It costs some of the states' accuracy.
      config.optimizer.state_dtype = before;
      advice_.pop_back();
    }
    if (shared_sequences_or_layers() || more_ranks() || more_ranks_that_share()) return advice_;
    if (states_in_host_memory() || shards_in_host_memory()) return advice_;
    if (config.fsdp.min_num_params > 1) {
      // The buffers of the largest units remain beside the activations.
      config.fsdp.min_num_params = 1;
      config.fsdp.exclude_stages.clear();
      if (try_it("fsdp.min_num_params = 1, fsdp.exclude_stages = []")) return advice_;
    }
    const int parts = 2 * run_.mesh.context * (config.mesh.sequence_parallel ? run_.mesh.model : 1);
    while (config.data.sequence_length >= 256 && config.data.sequence_length % (2 * parts) == 0) {
      config.data.sequence_length /= 2;
      if (try_it(concat("data.sequence_length = ", config.data.sequence_length))) return advice_;
    }
    return advice_;
  }

 private:
  /// The run with the changes so far.
  struct Run {
    config::Config config;
    comm::MeshShape mesh;

    /// The config with the size of every axis.
    config::Config meshed() const {
      config::Config meshed = config;
      meshed.mesh.dcn = mesh.dcn;
      meshed.mesh.data = mesh.data;
      meshed.mesh.context = mesh.context;
      meshed.mesh.model = mesh.model;
      return meshed;
    }
  };
  struct MeshChoice {
    Run run;
    Advice advice;
  };

  Advice needed(const std::string& change) const {
    const Units units = planned_units(run_.config, run_.mesh);
    const RecordedPass pass = record_pass(run_.config);
    const int64_t peak = device_peak(run_.config, units, pass);
    const double seconds = plan_time(run_.config, units, speed_, pass).step();
    const auto tokens = static_cast<double>(config::samples_per_step(run_.meshed(), run_.mesh.world_size()) *
                                            run_.config.data.sequence_length);
    return {.change = change,
            .device_peak = peak,
            .step_seconds = seconds,
            .tokens_per_second = seconds > 0 ? tokens / seconds : 0,
            .fits = peak <= limit_};
  }

  bool try_it(const std::string& change) {
    advice_.push_back(needed(change));
    return advice_.back().fits;
  }

  /// Takes blocks out of the root unit, which costs nothing.
  bool blocks_out_of_root() {
    config::Config& config = run_.config;
    const shard::BlocksInRoot blocks = shard::blocks_in_root(planned_units(config, run_.mesh));
    if (blocks.blocks == 0 || blocks.least_numel >= config.fsdp.min_num_params) return false;
    config.fsdp.min_num_params = blocks.least_numel;
    return try_it(concat("fsdp.min_num_params = ", blocks.least_numel));
  }

  /// Recomputes all stages with their inputs in host memory, which costs hardly more than recomputation.
  bool inputs_in_host_memory() {
    config::Config& config = run_.config;
    if (!is_for_gpu(config) || config.training.cuda_graphs || config.mesh.model > 1) return false;
    config::Config other = config;
    other.activation_checkpointing.mode = nn::RecomputeMode::kOffload;
    other.activation_checkpointing.memory_budget = 0;
    const nn::CheckpointingOptions options = choose_recomputation(other, speed_).options;
    const int64_t before_peak = needed("").device_peak;
    const nn::CheckpointingOptions before = std::exchange(config.activation_checkpointing, options);
    if (try_it("activation_checkpointing.mode = offload, activation_checkpointing.memory_budget = 0"))
      return true;
    // Not a change to make for little.
    if (advice_.back().device_peak > before_peak - before_peak / 10) {
      config.activation_checkpointing = before;
      advice_.pop_back();
    }
    return false;
  }

  bool optimizer_reads(const char* key) const {
    const optim::OptimizerTraits* traits = optim::optimizer_traits().find(run_.config.optimizer.name);
    return traits != nullptr && traits->keys && std::ranges::count(*traits->keys, key) > 0;
  }

  bool states_in_host_memory() {
    config::Config& config = run_.config;
    if (!is_for_gpu(config) || !optimizer_reads("offload") || optim::state_kinds(config.optimizer).empty() ||
        config.optimizer.offload == optim::OptimizerOffload::kStream || config.fsdp.cpu_offload) {
      return false;
    }
    config.optimizer.offload = optim::OptimizerOffload::kStream;
    return try_it("optimizer.offload = stream");
  }

  /// With the faster of two ways to update them.
  bool shards_in_host_memory() {
    config::Config& config = run_.config;
    if (config.fsdp.cpu_offload) return false;
    config.fsdp.cpu_offload = config.fsdp.move_grads_to_cpu = true;
    const UpdateTimes update = update_times(config, planned_units(config, run_.mesh), speed_);
    const bool streams = update.by_device > 0 && update.by_device < update.by_host;
    config.optimizer.offload = streams ? optim::OptimizerOffload::kStream : optim::OptimizerOffload::kNone;
    return try_it(concat("fsdp.cpu_offload = fsdp.move_grads_to_cpu = true",
                         streams ? ", optimizer.offload = stream" : ""));
  }

  bool can_have_states_in_8_bits() const {
    const config::Config& config = run_.config;
    if (config.optimizer.state_dtype == optim::StateType::kInt8 ||
        config.training.reproducible == config::Reproducible::kWorldSize) {
      return false;
    }
    return optimizer_reads("state_dtype") && !optim::state_kinds(config.optimizer).empty();
  }

  bool smaller_micro_batch() {
    int64_t& rows = run_.config.data.micro_batch_size;
    if (rows == 1) return false;
    int64_t fits = largest_micro_batch(run_.config, planned_units(run_.config, run_.mesh), limit_);
    rows = std::max<int64_t>(1, std::min(fits, rows));
    while (!keeps_global_batch()) --rows;  // micro-batches of 1 always divide it
    return try_it(concat("data.micro_batch_size = ", rows));
  }

  /// Whether training.global_batch_size divides into whole micro-batches; sets their number in the config.
  bool keeps_global_batch() {
    const int64_t batch = run_.config.training.global_batch_size;
    const int64_t at_once = run_.mesh.row_ranks() * run_.config.data.micro_batch_size;
    if (batch == 0) return true;
    if (batch % at_once != 0) return false;
    run_.config.training.gradient_accumulation_steps = batch / at_once;
    return true;
  }

  /// Doubles the ranks until they are enough.
  bool more_ranks() {
    const comm::MeshShape before = run_.mesh;
    const RecordedPass pass = record_pass(run_.config);  // does not depend on the number of ranks
    if (double_ranks(pass)) return try_it(concat(run_.mesh.world_size(), " ranks"));
    run_.mesh = before;  // the most ranks are not enough
    keeps_global_batch();
    return false;
  }

  bool double_ranks(const RecordedPass& pass) {
    while (run_.mesh.world_size() <= kMostRanks / 2) {
      run_.mesh.data *= 2;
      if (!keeps_global_batch()) return false;
      if (device_peak(run_.config, planned_units(run_.config, run_.mesh), pass) <= limit_) return true;
    }
    return false;
  }

  /// Divides the existing ranks into groups that share sequences or layers.
  bool shared_sequences_or_layers() {
    const std::optional<MeshChoice> choice = smallest_groups(run_.mesh);
    if (!choice) return false;
    run_ = choice->run;
    advice_.push_back(choice->advice);
    return true;
  }

  /// Finds the groups with which the most ranks suffice, and then the fewest ranks that do.
  bool more_ranks_that_share() {
    const Run before = run_;
    comm::MeshShape most = run_.mesh;
    while (most.world_size() <= kMostRanks / 2) most.data *= 2;
    if (const std::optional<MeshChoice> choice = smallest_groups(most)) {
      run_ = choice->run;
      run_.mesh.data = before.mesh.data;
      const RecordedPass pass = record_pass(run_.config);
      const bool as_many_rows =
          keeps_global_batch() &&
          device_peak(run_.config, planned_units(run_.config, run_.mesh), pass) <= limit_;
      if (as_many_rows || double_ranks(pass)) {
        return try_it(concat(run_.mesh.world_size(), " ranks, ", change_of_mesh(before.mesh)));
      }
    }
    run_ = before;
    return false;
  }

  /// The fastest run that fits among those with the smallest groups: ranks of mesh.data moved to mesh.context
  /// and mesh.model.
  std::optional<MeshChoice> smallest_groups(const comm::MeshShape& mesh) {
    const Run before = run_;
    std::optional<MeshChoice> best;
    for (int ranks = 2; ranks <= std::min(mesh.data, kLargestGroup) && !best; ++ranks) {
      if (mesh.data % ranks != 0) continue;
      for (int context = 1; context <= ranks; ++context) {
        if (ranks % context != 0) continue;
        run_ = before;
        run_.mesh = {.dcn = mesh.dcn,
                     .data = mesh.data / ranks,
                     .context = mesh.context * context,
                     .model = mesh.model * ranks / context,
                     .ranks_of_host = mesh.ranks_of_host};
        run_.config.mesh.context = run_.mesh.context;
        run_.config.mesh.model = run_.mesh.model;
        if (run_.mesh.model > 1) run_.config.mesh.sequence_parallel = true;
        keeps_global_batch();
        const std::optional<Advice> advice = needed_if_accepted(before);
        const bool is_best =
            advice && advice->fits && (!best || advice->tokens_per_second > best->advice.tokens_per_second);
        if (is_best) best = {run_, *advice};
      }
    }
    run_ = before;
    return best;
  }

  /// nullopt if the axes, or models or sequences on them, are refused.
  std::optional<Advice> needed_if_accepted(const Run& before) const {
    const auto conflicts_of = [this](config::Config config) {
      config.data.max_tokens = max_tokens_;
      return config::find_conflicts(config).size();
    };
    if (conflicts_of(run_.config) > conflicts_of(before.config)) return std::nullopt;
    try {
      config::check_world(run_.meshed(), run_.mesh.world_size());
      return needed(change_of_mesh(before.mesh));
    } catch (const util::Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      return std::nullopt;
    }
  }

  /// The text of the change to the mesh of run_.
  std::string change_of_mesh(const comm::MeshShape& before) const {
    const comm::MeshShape& now = run_.mesh;
    std::string text = data_is_rest_ ? "" : concat("mesh.data = ", now.data);
    const auto add = [&text](const std::string& change) { text += (text.empty() ? "" : ", ") + change; };
    if (now.context != before.context) add(concat("mesh.context = ", now.context));
    if (now.model != before.model) add(concat("mesh.model = ", now.model));
    if (now.model > 1 && !cut_sequences_) add("mesh.sequence_parallel = true");
    return text;
  }

  Run run_;
  int64_t max_tokens_;
  bool data_is_rest_, cut_sequences_;  ///< values of the given config
  MachineSpeed speed_;
  int64_t limit_;
  std::vector<Advice> advice_;
};

}  // namespace

std::vector<Advice> advise(const Plan& plan, const config::Config& given) {
  return Adviser(plan, given).run();
}

}  // namespace fsdp::plan
