#include "shard/spmd/optimization_barrier.h"

#include <ATen/core/grad_mode.h>

#include <memory>

#include "base/util/error.h"
#include "model/nn/hooked.h"
#include "shard/engine/autograd_hooks.h"

namespace fsdp::shard {
namespace {

void join_gradients(const nn::CallTensors& tensors) {
  if (!at::GradMode::is_enabled()) return;
  const nn::CallTensors joined = differentiable(tensors);
  if (!joined.empty()) when_backward_ends(joined, [] {});
}

class BarrierHook final : public nn::CallHook {
 public:
  std::shared_ptr<void> before(const nn::CallTensors& inputs) override {
    join_gradients(inputs);
    return nullptr;
  }
  void after(const nn::CallTensors& outputs) override { join_gradients(outputs); }
};

}  // namespace

std::vector<at::Tensor> optimization_barrier(std::vector<at::Tensor> tensors) {
  nn::CallTensors pointers;
  nn::collect_tensors(tensors, pointers);
  join_gradients(pointers);
  return tensors;
}

void optimization_barrier(torch::nn::Module& module) {
  auto* hookable = dynamic_cast<nn::Hookable*>(&module);
  if (hookable == nullptr) {
    fail(ErrorKind::kUsage,
         "optimization_barrier(): expected a module whose calls hooks can see; found a plain ", module.name(),
         "; declare it as fsdp::nn::Hooked, or derive it from nn::Stage");
  }
  hookable->attach(std::make_shared<BarrierHook>());
}

}  // namespace fsdp::shard
