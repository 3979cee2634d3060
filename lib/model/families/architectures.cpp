#include "model/families/architectures.h"

#include <utility>

#include "model/families/families.h"

namespace fsdp::nn {

util::Registry<Architecture>& architectures() {
  static util::Registry<Architecture> architectures("model", [] {
    std::vector<util::Registry<Architecture>::Named> built_in;
    for (const Family& family : families()) {
      Architecture architecture;
      for (const std::string& option : family.options) architecture.keys.push_back("model." + option);
      built_in.push_back({family.architecture, std::move(architecture)});
    }
    return built_in;
  }());
  return architectures;
}

bool is_built_in_architecture(std::string_view name) {
  const Architecture* architecture = architectures().find(name);
  return architecture != nullptr && architecture->plugin.empty();
}

util::Registry<LossFunction>& losses() {
  static util::Registry<LossFunction> losses("loss", {{kCrossEntropy, nullptr}});
  return losses;
}

}  // namespace fsdp::nn
