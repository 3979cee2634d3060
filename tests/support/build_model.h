#pragma once

#include <ATen/core/grad_mode.h>

#include <memory>

#include "comm/api/communicator.h"
#include "model/nn/decoder.h"
#include "run/train/initial_weights.h"
#include "shard/engine/wrap_policy.h"

namespace fsdp::testing {

/// The whole model of the options with its first weights, in the memory of this process; a sharded run builds
/// it part by part (run/train/run_parts.h) and starts with the same values. Weights are random from (seed,
/// name), or read from options.init_from, where every parameter must be found with its shape. Throws
/// Error(kUsage) for impossible shapes and Error(kCheckpoint) for weights that do not fit.
inline std::shared_ptr<nn::Stage> build_model(const nn::ModelOptions& options, uint64_t seed) {
  at::NoGradGuard no_grad;
  auto model = nn::make_decoder(options);
  auto source = train::initial_weights(options, seed, std::make_shared<comm::SingleCommunicator>(), *model);
  const shard::ModelTree tree = shard::make_model_tree(*model);
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const at::Tensor& tensor = tree.tensors[i];
    const std::vector<std::string>& names = tree.outline.parameters[i].names;
    source->read({names.front(), tensor, {names.begin() + 1, names.end()}}, {{0, tensor.numel()}},
                 tensor.detach().view({-1}));
  }
  return model;
}

}  // namespace fsdp::testing
