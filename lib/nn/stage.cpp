#include "nn/stage.h"

#include "util/error.h"

namespace fsdp::nn {

/// One call of forward(), shared by the continuations that hooks keep.
struct StageHook::Next::Pass {
  std::shared_ptr<torch::nn::Module> owner;  ///< keeps the stage alive; null when no shared_ptr owns it
  Stage& stage;
  std::shared_ptr<const Stage::StageHooks> hooks;
  StageContext context;
};

at::Tensor StageHook::Next::operator()(const at::Tensor& input) const {
  FSDP_CHECK(pass_ != nullptr);
  if (hook_ == pass_->hooks->size()) return pass_->stage.compute(input, pass_->context);
  return (*pass_->hooks)[hook_]->around(pass_->stage, input, Next(pass_, hook_ + 1));
}

const StageContext& StageHook::Next::context() const {
  FSDP_CHECK(pass_ != nullptr);
  return pass_->context;
}

void Stage::attach(std::shared_ptr<StageHook> hook) {
  auto hooks = hooks_ ? std::make_shared<StageHooks>(*hooks_) : std::make_shared<StageHooks>();
  hooks->push_back(std::move(hook));
  hooks_ = std::move(hooks);
}

namespace {

class CallHookAdaptor final : public StageHook {
 public:
  explicit CallHookAdaptor(std::shared_ptr<CallHook> hook) : hook_(std::move(hook)) {}

  at::Tensor around(Stage&, const at::Tensor& input, const Next& next) override {
    at::Tensor inner = input, output;
    {
      const std::shared_ptr<void> during = hook_->before({&inner});
      output = next(inner);
    }
    hook_->after({&output});
    return output;
  }

 private:
  std::shared_ptr<CallHook> hook_;
};

}  // namespace

void Stage::attach(std::shared_ptr<CallHook> hook) {
  attach(std::make_shared<CallHookAdaptor>(std::move(hook)));
}

at::Tensor Stage::forward(const at::Tensor& input, const StageContext& context) {
  if (!hooks_) return compute(input, context);
  return StageHook::Next(std::make_shared<const StageHook::Next::Pass>(
                             StageHook::Next::Pass{weak_from_this().lock(), *this, hooks_, context}),
                         0)(input);
}

}  // namespace fsdp::nn
