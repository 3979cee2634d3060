#include "train/build_model.h"

#include <ATen/core/grad_mode.h>

#include <set>

#include "checkpoint/weights.h"
#include "nn/decoder.h"
#include "nn/initialize.h"

namespace fsdp::train {
namespace {}  // namespace

std::shared_ptr<nn::Stage> build_model(const nn::ModelOptions& options, uint64_t seed) {
  auto model = nn::make_decoder(options);
  if (options.init_from.empty()) {
    nn::initialize_parameters(*model, options, seed);
  } else {
    checkpoint::load_weights(*model, options.init_from);
  }
  return model;
}

}  // namespace fsdp::train
