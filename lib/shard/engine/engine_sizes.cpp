#include "shard/engine/engine_sizes.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>

#include "model/nn/layers.h"
#include "shard/engine/wrap.h"
#include "shard/engine/wrap_policy.h"

namespace fsdp::shard {

std::vector<UnitSizes> unit_sizes(const Engine& engine) {
  std::vector<UnitSizes> all;
  for (const auto& unit : engine.units()) {
    UnitSizes& sizes =
        all.emplace_back(sizes_of_unit(unit->name(), unit->options(), unit->storage().layout(),
                                       unit->groups().sizes(), link_types(unit->options(), engine.mesh())));
    for (size_t i = 0; i < sizes.parameters.size(); ++i) {
      const NamedParameter& parameter = unit->storage().parameters()[i];
      sizes.parameters[i].shape = parameter.whole_shape();
      sizes.most_uses = std::max(sizes.most_uses, std::ssize(parameter.other_names) + 1);
    }
    sizes.model_ranks = engine.mesh().model;
    sizes.is_root = engine.is_root(*unit);
    sizes.has_trainable_parameters = unit->storage().has_trainable_parameters();
    sizes.input_is_differentiable = engine.input_is_differentiable(*unit);
    sizes.output_is_differentiable = engine.output_is_differentiable(*unit);
  }
  return all;
}

int64_t parameter_count(const Engine& engine, const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& segments : engine.segments_by_parameter()) {
    count += c10::multiply_integers(segments.front().shape);
  }
  for (const auto& module : model.modules()) {
    const auto* linear = dynamic_cast<const nn::Linear*>(module.get());
    if (linear == nullptr || !linear->quantization()) continue;
    count += linear->in_features() * linear->out_features() - linear->weight().numel();
  }
  return count;
}

std::vector<UnitSizes> unit_sizes(torch::nn::Module& model, const ShardOptions& given,
                                  const comm::MeshShape& mesh) {
  const ShardOptions options = WrappedModules::added_to(given);
  const ModelTree tree = make_model_tree(model, options.parts);
  return unit_sizes(tree.outline, options, mesh, unit_decisions(tree, options));
}

StepFormula step_formula(const Engine& engine, StepFormulaOptions step) {
  step.on_device = !engine.communicator().device().is_cpu();
  return step_formula(unit_sizes(engine), engine.options(), step);
}

}  // namespace fsdp::shard
