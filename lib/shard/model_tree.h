#pragma once

// The modules and parameters of a model as two lists, which planning the units goes over more than once: an
// outline of names and shapes, and what each entry of it stands for.

#include <torch/nn/module.h>

#include <vector>

#include "nn/hooked.h"
#include "nn/model_outline.h"

namespace fsdp::shard {

struct ModelTree {
  nn::ModelOutline outline;
  std::vector<nn::Hookable*> modules;  ///< by node; null for one whose calls no hook can see
  std::vector<at::Tensor> tensors;     ///< by parameter
};

ModelTree make_model_tree(torch::nn::Module& root);

}  // namespace fsdp::shard
