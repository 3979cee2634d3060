#include "train/plan_memory.h"

#include <algorithm>
#include <map>
#include <string>

#include "shard/step_formula.h"
#include "train/plan_activations.h"

namespace fsdp::train {
namespace {

using shard::UnitSizes;

/// Follows the gradients of shards, and of units that are whole on this rank, through backward.
class ShardGradients {
 public:
  ShardGradients(const config::Config& config, const std::vector<UnitSizes>& units, MemoryTape& tape)
      : units_(units), tape_(tape), moved_(config.fsdp.move_grads_to_cpu) {
    keep_low_ = config.mixed_precision.keep_low_precision_grads;
    int64_t micro_batches = config.training.gradient_accumulation_steps;
    // What is reduced in the last of several micro-batches meets the sum of those before.
    accumulates_ = micro_batches > 1 && !config.training.no_sync;
    for (size_t i = 0; i < units.size(); ++i) {
      if (!units[i].is_root) by_path_[units[i].name] = i;
    }
  }

  /// Whether those that are moved to the host count.
  void count_moved(bool count) { counts_moved_ = count; }

  void begin() {
    if (accumulates_) take_final(all_final());
  }

  StageEvents events() {
    return {.backward_begins = [this](const std::string& path) { begins(path); },
            .backward_ends = [this](const std::string& path) { ends(path); }};
  }

  /// Of all units, at rest.
  int64_t all_final() const {
    int64_t bytes = 0;
    for (const UnitSizes& unit : units_) bytes += final_bytes(unit);
    return bytes;
  }

  int64_t final_bytes(const UnitSizes& unit) const {
    if (!unit.has_trainable_parameters) return 0;
    return unit.shard_numel * (keep_low_ ? unit.reduce_element() : 4);
  }

 private:
  void begins(const std::string& path) {
    for_units_at(path, [this](const UnitSizes& unit) {
      if (!unit.is_cut()) tape_.take(unit.gradient_bytes());  // not one of the pool's buffers
    });
  }

  void ends(const std::string& path) {
    if (path.empty()) {
      for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
        if (unit->is_root || !unit->input_is_differentiable) reduce(*unit);
      }
      finish();
      return;
    }
    for_units_at(path, [this](const UnitSizes& unit) {
      if (unit.input_is_differentiable) reduce(unit);
    });
  }

  template <typename Body>
  void for_units_at(const std::string& path, const Body& body) {
    if (path.empty()) {
      for (const UnitSizes& unit : units_) {
        if (unit.is_root) body(unit);
      }
      return;
    }
    if (auto found = by_path_.find(path); found != by_path_.end()) body(units_[found->second]);
  }

  void reduce(const UnitSizes& unit) {
    if (!unit.has_trainable_parameters) return;
    finish();
    if (unit.is_cut()) tape_.take(unit.reduce_payload_bytes());
    reducing_ = &unit;
  }

  /// The result of the reduction becomes, or is added to, the shard's gradient.
  void finish() {
    if (reducing_ == nullptr) return;
    const UnitSizes& unit = *reducing_;
    reducing_ = nullptr;
    const int64_t result = unit.reduce_payload_bytes();
    const bool same = result == final_bytes(unit);
    if (accumulates_) {
      if (!same) tape_.touch(final_bytes(unit));
      tape_.give(result);
    } else if (!same || moved_) {
      take_final(final_bytes(unit));
      tape_.give(result);
    }
  }

  void take_final(int64_t bytes) {
    if (counts_moved_ || !moved_) tape_.take(bytes);
  }

  const std::vector<UnitSizes>& units_;
  MemoryTape& tape_;
  bool keep_low_, moved_, accumulates_, counts_moved_ = true;
  std::map<std::string, size_t> by_path_;
  const UnitSizes* reducing_ = nullptr;
};

/// The angles of rotary positions, and the tokens.
int64_t inputs(const ActivationShape& shape) {
  const nn::ModelOptions& model = shape.model;
  int64_t bytes = 2 * 8 * shape.count();
  if (model.architecture == "llama") {
    bytes += 2 * shape.tokens * (model.hidden_size / model.num_attention_heads) * shape.buffer_element;
  }
  return bytes;
}

int64_t pass_peak(const config::Config& config, const std::vector<UnitSizes>& units,
                  const ActivationShape& shape, bool with_moved) {
  MemoryTape tape;
  ShardGradients gradients(config, units, tape);
  gradients.count_moved(with_moved);
  gradients.begin();
  run_micro_batch(shape, tape, gradients.events());
  return tape.peak();
}

/// Temporaries of clipping and of the optimizer, for its largest unit.
int64_t update_temporaries(const config::Config& config, const std::vector<UnitSizes>& units) {
  int64_t largest = 0;
  for (const UnitSizes& unit : units) {
    if (unit.has_trainable_parameters) largest = std::max(largest, unit.shard_numel);
  }
  int64_t norm = 8 * largest;
  int64_t update = config.mixed_precision.keep_low_precision_grads ? 4 * largest : 0;
  if (!config.optimizer.fused) update += 4 * largest;
  return std::max(norm, update);
}

}  // namespace

int64_t optimizer_state_bytes(const optim::OptimizerOptions& options, int64_t shard_bytes) {
  if (options.name == "adamw") return 2 * shard_bytes;
  return options.momentum != 0 ? shard_bytes : 0;
}

MemoryPlan plan_memory(const config::Config& config, const std::vector<UnitSizes>& units) {
  const shard::StepFormula step = shard::step_formula(
      units, config::shard_options(config),
      {.micro_batches = config.training.gradient_accumulation_steps, .no_sync = config.training.no_sync});
  const ActivationShape shape = activation_shape(config);
  MemoryTape none;
  const ShardGradients gradients(config, units, none);

  MemoryPlan plan;
  plan.shards = step.shard_bytes;
  plan.optimizer = optimizer_state_bytes(config.optimizer, step.shard_bytes);
  plan.gradients = gradients.all_final();
  plan.buffers = step.unsharded_bytes;
  plan.saved_activations = saved_activation_bytes(shape);
  const int64_t lasting = plan.buffers + inputs(shape);
  plan.peak = plan.shards + plan.optimizer + lasting +
              std::max(pass_peak(config, units, shape, /*with_moved=*/true),
                       plan.gradients + update_temporaries(config, units));
  plan.device_peak = plan.peak;
  if (config.fsdp.cpu_offload) {
    plan.device_peak = lasting + pass_peak(config, units, shape, /*with_moved=*/false);
  }
  return plan;
}

}  // namespace fsdp::train
