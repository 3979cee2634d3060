#pragma once

// The stages and parameters of a model as two lists of names and shapes: what others need to know of a model.
// shard/engine/wrap_policy.h makes it from a module tree, which may be on the meta device.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::nn {

/// A module at one place in the model; a module that is registered twice has two nodes.
struct OutlineNode {
  std::string path;       ///< dotted; empty for the root
  bool is_stage = false;  ///< false for other modules, such as a list
  std::string type;       ///< Stage::type_name()
  size_t parent = 0;      ///< index of the enclosing node; 0 for the root
  size_t end = 0;         ///< the node and everything inside it are the indices [own, end)

  bool operator==(const OutlineNode&) const = default;
};

/// A parameter with all places where it is registered; tied names share one entry.
struct OutlineParameter {
  std::vector<int64_t> shape;
  bool requires_grad = true;
  std::vector<std::string> names;  ///< dotted names, in the order of the modules
  std::vector<size_t> nodes;       ///< node of each name, ascending
  // Where several ranks compute a layer together (model/nn/parallelize.h), `shape` is that of this rank's
  // part.
  std::vector<int64_t> whole_shape = {};  ///< shape of the whole parameter; empty: it is whole
  int holders = 1;                        ///< ranks of the mesh's axis model that have this part
  bool shares_gradient = false;           ///< each holder's gradient is its share
  /// Elements of a weight that are kept as bytes (model/kernels/quantized.h), whose number `shape` is; 0: it
  /// is not.
  int64_t quantized_elements = 0;

  const std::vector<int64_t>& shape_of_whole() const { return whole_shape.empty() ? shape : whole_shape; }
  int64_t numel_of_whole() const {
    int64_t count = 1;
    for (int64_t size : shape_of_whole()) count *= size;
    return count;
  }
  bool operator==(const OutlineParameter&) const = default;
};

struct ModelOutline {
  std::vector<OutlineNode> nodes;            ///< the root first, each module before those inside it
  std::vector<OutlineParameter> parameters;  ///< sorted by the place of their first names

  bool operator==(const ModelOutline&) const = default;
};

/// Whether every place of the parameter is the node or inside it.
inline bool lies_inside(const OutlineParameter& parameter, const ModelOutline& model, size_t node) {
  return parameter.nodes.front() >= node && parameter.nodes.back() < model.nodes[node].end;
}

/// The dotted name of `name` inside `path`.
inline std::string name_inside(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace fsdp::nn
