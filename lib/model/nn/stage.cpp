#include "model/nn/stage.h"

#include <algorithm>
#include <set>

#include "base/util/error.h"

namespace fsdp::nn {

/// One call of forward(), shared by the continuations that hooks keep.
struct CallHook::Next::Pass {
  std::shared_ptr<torch::nn::Module> owner;  ///< keeps the stage alive; null if no shared_ptr owns it
  Stage& stage;
  std::shared_ptr<const detail::Hooks> hooks;
  StageContext context;
};

at::Tensor CallHook::Next::operator()(const at::Tensor& input) const {
  FSDP_CHECK(pass_ != nullptr);
  if (hook_ == pass_->hooks->size()) return pass_->stage.compute(input, pass_->context);
  return (*pass_->hooks)[hook_]->around(pass_->stage, input, Next(pass_, hook_ + 1));
}

const StageContext& CallHook::Next::context() const {
  FSDP_CHECK(pass_ != nullptr);
  return pass_->context;
}

CallHook::Next CallHook::Next::with(StageContext context) const {
  FSDP_CHECK(pass_ != nullptr);
  return {std::make_shared<const Pass>(Pass{pass_->owner, pass_->stage, pass_->hooks, std::move(context)}),
          hook_};
}

std::shared_ptr<void> CallHook::before(const CallTensors&) {
  fail(
      ErrorKind::kUsage,
      "hook: expected a module derived from fsdp::Stage, around whose compute() it runs; found another module; "
      "implement before() and after() instead of around()");
}

at::Tensor CallHook::around(Stage&, const at::Tensor& input, const Next& next) {
  at::Tensor inner = input, output;
  {
    const std::shared_ptr<void> during = before({&inner});
    output = next(inner);
  }
  after({&output});
  return output;
}

void Stage::attach(std::shared_ptr<CallHook> hook) {
  auto hooks = hooks_ ? std::make_shared<detail::Hooks>(*hooks_) : std::make_shared<detail::Hooks>();
  hooks->push_back(std::move(hook));
  hooks_ = std::move(hooks);
}

void Stage::replace(const CallHook& attached, std::shared_ptr<CallHook> hook) {
  if (!hooks_) return;
  auto hooks = std::make_shared<detail::Hooks>(*hooks_);
  detail::replace_hook(*hooks, attached, std::move(hook));
  hooks_ = hooks->empty() ? nullptr : std::move(hooks);
}

at::Tensor Stage::forward(const at::Tensor& input, const StageContext& context) {
  if (!hooks_) return compute(input, context);
  return CallHook::Next(std::make_shared<const CallHook::Next::Pass>(
                            CallHook::Next::Pass{weak_from_this().lock(), *this, hooks_, context}),
                        0)(input);
}

namespace {

struct StageSearch {
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
  StageSearch search{stage_types};
  search.look_below(root, "");
  return std::move(search.found);
}

}  // namespace fsdp::nn
