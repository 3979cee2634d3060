#include "nn/stage.h"

#include "util/error.h"

namespace fsdp::nn {

/// One call of forward(), shared by the continuations that surrounds keep.
struct Surround::Next::Pass {
  std::shared_ptr<torch::nn::Module> owner;  ///< keeps the stage alive; null when no shared_ptr owns it
  Stage& stage;
  std::shared_ptr<const Stage::Surrounds> surrounds;
  StageContext context;
};

at::Tensor Surround::Next::operator()(const at::Tensor& input) const {
  FSDP_CHECK(pass_ != nullptr);
  if (surround_ == pass_->surrounds->size()) return pass_->stage.compute(input, pass_->context);
  return (*pass_->surrounds)[surround_]->around(pass_->stage, input, Next(pass_, surround_ + 1));
}

const StageContext& Surround::Next::context() const {
  FSDP_CHECK(pass_ != nullptr);
  return pass_->context;
}

void Stage::attach(std::shared_ptr<Surround> surround) {
  auto surrounds = surrounds_ ? std::make_shared<Surrounds>(*surrounds_) : std::make_shared<Surrounds>();
  surrounds->push_back(std::move(surround));
  surrounds_ = std::move(surrounds);
}

namespace {

class SurroundOfHook final : public Surround {
 public:
  explicit SurroundOfHook(std::shared_ptr<CallHook> hook) : hook_(std::move(hook)) {}

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
  attach(std::make_shared<SurroundOfHook>(std::move(hook)));
}

at::Tensor Stage::forward(const at::Tensor& input, const StageContext& context) {
  if (!surrounds_) return compute(input, context);
  return Surround::Next(std::make_shared<const Surround::Next::Pass>(
                            Surround::Next::Pass{weak_from_this().lock(), *this, surrounds_, context}),
                        0)(input);
}

}  // namespace fsdp::nn
