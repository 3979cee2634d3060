#include "nn/outermost_stages.h"

#include <algorithm>
#include <set>

namespace fsdp::nn {
namespace {

struct Search {
  const std::vector<std::string>& stage_types;
  std::vector<std::pair<std::string, Stage*>> found = {};
  std::set<torch::nn::Module*> seen = {};

  void look_below(torch::nn::Module& module, const std::string& prefix) {
    for (const auto& child : module.named_children()) {
      torch::nn::Module& inner = *child.value();
      if (!seen.insert(&inner).second) continue;
      auto* stage = dynamic_cast<Stage*>(&inner);
      if (stage && std::count(stage_types.begin(), stage_types.end(), stage->type_name()) > 0) {
        found.emplace_back(prefix + child.key(), stage);
      } else {
        look_below(inner, prefix + child.key() + ".");
      }
    }
  }
};

}  // namespace

std::vector<std::pair<std::string, Stage*>> outermost_stages(Stage& root,
                                                             const std::vector<std::string>& stage_types) {
  Search search{stage_types};
  search.look_below(root, "");
  return std::move(search.found);
}

}  // namespace fsdp::nn
