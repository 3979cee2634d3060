#include "shard/model_tree.h"

#include <map>

namespace fsdp::shard {
namespace {

using torch::nn::Module;

class TreeMaker {
 public:
  void add(Module& module, const std::string& path, size_t parent) {
    nn::ModelOutline& outline = tree_.outline;
    size_t own = outline.nodes.size();
    auto* hookable = dynamic_cast<nn::Hookable*>(&module);
    tree_.modules.push_back(hookable);
    outline.nodes.push_back({.path = path,
                             .is_stage = hookable != nullptr,
                             .type = hookable != nullptr ? hookable->type_name() : std::string(),
                             .parent = parent});
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = parameter.value();
      auto [at, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), tree_.tensors.size());
      if (is_new) {
        tree_.tensors.push_back(tensor);
        outline.parameters.push_back({.shape = tensor.sizes().vec(),
                                      .requires_grad = tensor.requires_grad(),
                                      .names = {},
                                      .nodes = {}});
      }
      nn::OutlineParameter& entry = outline.parameters[at->second];
      entry.names.push_back(nn::name_inside(path, parameter.key()));
      entry.nodes.push_back(own);
    }
    for (const auto& child : module.named_children()) {
      add(*child.value(), nn::name_inside(path, child.key()), own);
    }
    outline.nodes[own].end = outline.nodes.size();
  }

  ModelTree take() { return std::move(tree_); }

 private:
  ModelTree tree_;
  std::map<const void*, size_t> index_;  ///< of a tensor, into tree_.tensors
};

}  // namespace

ModelTree make_model_tree(Module& root) {
  TreeMaker maker;
  maker.add(root, "", 0);
  return maker.take();
}

}  // namespace fsdp::shard
