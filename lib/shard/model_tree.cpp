#include "shard/model_tree.h"

#include <map>

namespace fsdp::shard {
namespace {

using torch::nn::Module;

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

class TreeMaker {
 public:
  void add(Module& module, const std::string& path, size_t parent) {
    size_t own = tree_.nodes.size();
    tree_.nodes.push_back({path, dynamic_cast<nn::Stage*>(&module), parent, 0});
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      auto [at, is_new] =
          index_.try_emplace(parameter.value().unsafeGetTensorImpl(), tree_.parameters.size());
      if (is_new) tree_.parameters.push_back({parameter.value(), {}, {}});
      ModelParameter& entry = tree_.parameters[at->second];
      entry.names.push_back(join(path, parameter.key()));
      entry.nodes.push_back(own);
    }
    for (const auto& child : module.named_children()) add(*child.value(), join(path, child.key()), own);
    tree_.nodes[own].end = tree_.nodes.size();
  }

  ModelTree take() { return std::move(tree_); }

 private:
  ModelTree tree_;
  std::map<const void*, size_t> index_;  ///< of a tensor, into tree_.parameters
};

}  // namespace

ModelTree make_model_tree(nn::Stage& root) {
  TreeMaker maker;
  maker.add(root, "", 0);
  return maker.take();
}

}  // namespace fsdp::shard
