#include "shard/units/unit_options.h"

#include <cmath>

#include "base/util/error.h"
#include "base/util/text.h"
#include "shard/units/option_conflicts.h"

namespace fsdp::shard {
namespace {

/// The options that a unit may have for itself, in the form of a whole model's, whose rules hold for them
/// too.
ShardOptions own_options(const ShardOptions& model, const UnitOverrides& own) {
  ShardOptions unit;
  unit.strategy = own.strategy.value_or(model.strategy);
  unit.reshard_after_forward = own.reshard_after_forward.value_or(model.reshard_after_forward);
  unit.param_storage = own.param_storage.value_or(model.param_storage);
  unit.cpu_offload = own.cpu_offload.value_or(model.cpu_offload);
  // What belongs to an option of the model that the unit does not have does not apply to it either.
  unit.move_grads_to_cpu = own.move_grads_to_cpu.value_or(model.move_grads_to_cpu && unit.cpu_offload);
  const MixedPrecisionOptions& of_model = model.mixed_precision;
  MixedPrecisionOptions& precision = unit.mixed_precision;
  precision.param_dtype = own.param_dtype.value_or(of_model.param_dtype);
  precision.reduce_dtype = own.reduce_dtype.value_or(of_model.reduce_dtype);
  precision.buffer_dtype = of_model.buffer_dtype;
  precision.cast_forward_inputs = own.cast_forward_inputs.value_or(of_model.cast_forward_inputs);
  const bool is_low = precision.reduce_dtype != util::FloatType::kFloat32;
  precision.keep_low_precision_grads =
      own.keep_low_precision_grads.value_or(of_model.keep_low_precision_grads && is_low);
  return unit;
}

template <typename Option>
void fill(Option& option, const Option& other) {
  if (!option) option = other;
}

}  // namespace

UnitOverrides merged(UnitOverrides own, const UnitOverrides& others) {
  fill(own.strategy, others.strategy);
  fill(own.reshard_after_forward, others.reshard_after_forward);
  fill(own.param_storage, others.param_storage);
  fill(own.param_dtype, others.param_dtype);
  fill(own.reduce_dtype, others.reduce_dtype);
  fill(own.cast_forward_inputs, others.cast_forward_inputs);
  fill(own.keep_low_precision_grads, others.keep_low_precision_grads);
  fill(own.cpu_offload, others.cpu_offload);
  fill(own.move_grads_to_cpu, others.move_grads_to_cpu);
  return own;
}

UnitOptions unit_options(const ShardOptions& model, const std::string& name, bool is_root,
                         const UnitOverrides& own) {
  const ShardOptions unit = own_options(model, own);
  const bool stays_by_name =
      util::matches_any(name, model.keep_after_forward) || (is_root && !model.reshard_root_after_forward);
  const auto param_storage = util::scalar_type(unit.param_storage),
             param_dtype = util::scalar_type(unit.mixed_precision.param_dtype);
  const bool keeps_low_precision_shard = model.mixed_precision.keep_low_precision_shards &&
                                         !model.trained_apart &&
                                         util::element_size(param_dtype) < util::element_size(param_storage);
  const bool stays = !reshards(unit.strategy) || !unit.reshard_after_forward ||
                     (!own.reshard_after_forward && stays_by_name);
  return {.storage = {.layout = model.layout,
                      .param_storage = param_storage,
                      .param_dtype = param_dtype,
                      .reduce_dtype = util::scalar_type(unit.mixed_precision.reduce_dtype),
                      .keep_low_precision_grads = unit.mixed_precision.keep_low_precision_grads,
                      .keeps_low_precision_shard = keeps_low_precision_shard,
                      .cpu_offload = unit.cpu_offload,
                      .move_grads_to_cpu = unit.move_grads_to_cpu,
                      .sums_by_sample = model.sums_by_sample},
          .strategy = unit.strategy,
          .hybrid_optimizer = model.hybrid_optimizer,
          .stays_after_forward = stays,
          .stays_in_step = stays && model.trained_apart,
          .cast_forward_inputs = unit.mixed_precision.cast_forward_inputs,
          .gradient_predivide_factor = model.gradient_predivide_factor,
          .links = {.gather_dtype = model.gather_dtype.value(),
                    .reduce_dtype = model.reduce_dtype.value(),
                    .coded = model.quantize_links.value(),
                    .error_feedback = model.error_feedback,
                    .seed = model.quantization_seed}};
}

void require_no_unit_conflicts(const ShardOptions& model, const UnitOverrides& own, const std::string& path) {
  const ShardOptions unit = own_options(model, own);
  const auto refuse = [&path](const std::string& message) {
    fail(ErrorKind::kUsage, "wrap() of \"", path, "\": ", message);
  };
  const std::vector<OptionConflict> conflicts = find_option_conflicts(unit);
  if (!conflicts.empty()) refuse(conflicts.front().message);
  if (own.reshard_after_forward.value_or(false) && !reshards(unit.strategy)) {
    refuse(concat(
        "fsdp.reshard_after_forward must be false, but is true, and with fsdp.strategy = ", unit.strategy,
        " the unit stays gathered from forward to backward; leave it out or set the unit's "
        "strategy to full_shard or hybrid_shard"));
  }
}

double predivide_factor(const UnitOptions& options, int ranks) {
  if (options.gradient_predivide_factor > 0) return options.gradient_predivide_factor;
  if (options.storage.reduce_dtype != c10::ScalarType::Half) return 1;
  // Half of the division before the sum and half after keeps both from leaving the range.
  return std::exp2(std::round(std::log2(ranks) / 2));
}

}  // namespace fsdp::shard
