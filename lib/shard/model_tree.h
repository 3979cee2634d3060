#pragma once

// The modules and parameters of a model as two lists, which planning the units goes over more than once: an
// outline of names and shapes, and what each entry of it stands for.

#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/model_outline.h"
#include "nn/stage.h"

namespace fsdp::shard {

struct ModelTree {
  nn::ModelOutline outline;
  std::vector<nn::Stage*> stages;   ///< by node; null for a module that is no stage
  std::vector<at::Tensor> tensors;  ///< by parameter
};

ModelTree make_model_tree(nn::Stage& root);

}  // namespace fsdp::shard
