#pragma once

// The modules and parameters of a model as two lists, which planning the units goes over more than once.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "nn/stage.h"

namespace fsdp::shard {

/// A module at one place of the model. A module that is registered at two places has two nodes.
struct ModelNode {
  std::string path;            ///< dotted; empty for the root
  nn::Stage* stage = nullptr;  ///< null for a module that is no stage, such as a list
  size_t parent = 0;           ///< index of the node around it; the root's own is 0
  size_t end = 0;              ///< the node and everything inside it are the indices [own, end)
};

/// A parameter with all its places; tied names share one tensor and are one entry.
struct ModelParameter {
  at::Tensor tensor;
  std::vector<std::string> names;  ///< in the order of the modules
  std::vector<size_t> nodes;       ///< where each name is registered; ascending
};

struct ModelTree {
  std::vector<ModelNode> nodes;            ///< the root first, each module before those inside it
  std::vector<ModelParameter> parameters;  ///< in the order of their first names
};

ModelTree make_model_tree(nn::Stage& root);

/// Whether every place of the parameter is the node or inside it.
inline bool lies_inside(const ModelParameter& parameter, const ModelTree& tree, size_t node) {
  return parameter.nodes.front() >= node && parameter.nodes.back() < tree.nodes[node].end;
}

}  // namespace fsdp::shard
