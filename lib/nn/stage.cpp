#include "nn/stage.h"

namespace fsdp::nn {

at::Tensor Stage::forward(const at::Tensor& input, const StageContext& context) {
  return run_from(0, input, context);
}

at::Tensor Stage::run_from(size_t surround, const at::Tensor& input, const StageContext& context) {
  if (surround == surrounds_.size()) return compute(input, context);
  return surrounds_[surround]->around(*this, input, [this, surround, &context](const at::Tensor& inner) {
    return run_from(surround + 1, inner, context);
  });
}

}  // namespace fsdp::nn
