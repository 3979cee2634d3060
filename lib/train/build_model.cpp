#include "train/build_model.h"

#include <ATen/core/grad_mode.h>

#include "comm/single_communicator.h"
#include "nn/decoder.h"
#include "shard/model_tree.h"
#include "train/initial_weights.h"

namespace fsdp::train {

std::shared_ptr<nn::Stage> build_model(const nn::ModelOptions& options, uint64_t seed) {
  at::NoGradGuard no_grad;
  auto model = nn::make_decoder(options);
  auto source = initial_weights(*model, options, seed, std::make_shared<comm::SingleCommunicator>());
  for (const shard::ModelParameter& parameter : shard::make_model_tree(*model).parameters) {
    const int64_t numel = parameter.tensor.numel();
    source->read(
        {parameter.names.front(), parameter.tensor, {parameter.names.begin() + 1, parameter.names.end()}},
        {.rows = 1, .begin = 0, .end = numel}, parameter.tensor.detach().view({-1}));
  }
  return model;
}

}  // namespace fsdp::train
