#include "nn/stage.h"

namespace fsdp::nn {

/// One call of forward(), shared by the continuations that surrounds keep.
struct Stage::Pass {
  std::shared_ptr<torch::nn::Module> owner;  ///< keeps the stage alive; null when no shared_ptr owns it
  Stage& stage;
  std::shared_ptr<const Surrounds> surrounds;
  StageContext context;
};

void Stage::attach(std::shared_ptr<Surround> surround) {
  auto surrounds = surrounds_ ? std::make_shared<Surrounds>(*surrounds_) : std::make_shared<Surrounds>();
  surrounds->push_back(std::move(surround));
  surrounds_ = std::move(surrounds);
}

at::Tensor Stage::forward(const at::Tensor& input, const StageContext& context) {
  if (!surrounds_) return compute(input, context);
  return run_from(0, std::make_shared<const Pass>(Pass{weak_from_this().lock(), *this, surrounds_, context}),
                  input);
}

at::Tensor Stage::run_from(size_t surround, const std::shared_ptr<const Pass>& pass,
                           const at::Tensor& input) {
  if (surround == pass->surrounds->size()) return pass->stage.compute(input, pass->context);
  return (*pass->surrounds)[surround]->around(pass->stage, input, [pass, surround](const at::Tensor& inner) {
    return run_from(surround + 1, pass, inner);
  });
}

}  // namespace fsdp::nn
