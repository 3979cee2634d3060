#include "shard/wrap_policy.h"

#include <algorithm>
#include <map>
#include <set>

namespace fsdp::shard {
namespace {

using ParameterId = const void*;
using torch::nn::Module;

ParameterId id_of(const at::Tensor& parameter) { return parameter.unsafeGetTensorImpl(); }

/// How often each parameter is registered in the modules under `module`.
std::map<ParameterId, int> count_registrations(const Module& module) {
  std::map<ParameterId, int> counts;
  for (const at::Tensor& parameter : module.parameters()) ++counts[id_of(parameter)];
  return counts;
}

class Planner {
 public:
  Planner(nn::Stage& root, const ShardOptions& options)
      : options_(options), registrations_(count_registrations(root)) {}

  std::vector<UnitPlan> plan(nn::Stage& root) {
    choose_below(root, "");
    chosen_.insert({"", &root});
    assign(root, "", nullptr);
    return std::move(plans_);
  }

 private:
  /// Chooses units among the stages below `module`; returns the parameters that they hold.
  std::set<ParameterId> choose_below(const Module& module, const std::string& path) {
    std::set<ParameterId> held;
    for (const auto& child : module.named_children()) {
      held.merge(choose(*child.value(), join(path, child.key())));
    }
    return held;
  }

  std::set<ParameterId> choose(const Module& module, const std::string& path) {
    std::set<ParameterId> held = choose_below(module, path);
    const auto* stage = dynamic_cast<const nn::Stage*>(&module);
    if (stage == nullptr || excluded(*stage)) return held;

    std::set<ParameterId> left;
    int64_t numel = 0;
    auto inside = count_registrations(module);
    for (const at::Tensor& parameter : module.parameters()) {
      ParameterId id = id_of(parameter);
      bool shared_with_outside = inside.at(id) < registrations_.at(id);
      if (shared_with_outside || held.count(id) > 0) continue;
      if (left.insert(id).second) numel += parameter.numel();
    }
    if (left.empty() || numel < options_.min_num_params) return held;
    chosen_.insert({path, stage});
    held.merge(left);
    return held;
  }

  bool excluded(const nn::Stage& stage) const {
    const auto& types = options_.exclude_stages;
    return std::find(types.begin(), types.end(), stage.type_name()) != types.end();
  }

  /// Second pass, outside in: makes the plans and gives each parameter to the innermost unit around all its
  /// places.
  void assign(Module& module, const std::string& path, const std::vector<size_t>* enclosing) {
    std::vector<size_t> units = enclosing ? *enclosing : std::vector<size_t>{};
    if (chosen_.count(path) > 0) {
      units.push_back(plans_.size());
      plans_.push_back({path.empty() ? "root" : path, dynamic_cast<nn::Stage*>(&module), {}});
      inside_.push_back(count_registrations(module));
    }
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      ParameterId id = id_of(parameter.value());
      if (!assigned_.insert(id).second) continue;
      size_t unit = units.front();
      for (size_t candidate : units) {
        if (inside_[candidate].at(id) == registrations_.at(id)) unit = candidate;
      }
      plans_[unit].parameters.push_back({join(path, parameter.key()), parameter.value()});
    }
    for (const auto& child : module.named_children()) assign(*child.value(), join(path, child.key()), &units);
  }

  static std::string join(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  const ShardOptions& options_;
  std::map<ParameterId, int> registrations_;
  std::map<std::string, const nn::Stage*> chosen_;
  std::set<ParameterId> assigned_;
  std::vector<UnitPlan> plans_;
  std::vector<std::map<ParameterId, int>> inside_;
};

}  // namespace

std::vector<UnitPlan> plan_units(nn::Stage& root, const ShardOptions& options) {
  return Planner(root, options).plan(root);
}

}  // namespace fsdp::shard
