#include "base/tensor/saved_tensors.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

namespace fsdp::util {
namespace {

/// What the hooks of a scope have seen, and what they give back.
struct Seen {
  int packed = 0, unpacked = 0;
  double factor = 1;
};

class ScalingHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit ScalingHooks(Seen& seen) : seen_(seen) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    ++seen_.packed;
    kept_ = tensor.detach().clone();
  }
  at::Tensor call_unpack_hook() override {
    ++seen_.unpacked;
    return kept_ * seen_.factor;
  }

 private:
  Seen& seen_;
  at::Tensor kept_;
};

SavedTensorScope::Hooks scaling(Seen& seen) {
  return [&seen] { return std::make_unique<ScalingHooks>(seen); };
}

at::Tensor leaf(double value) { return at::full({3}, value).requires_grad_(); }
double gradient_of(const at::Tensor& x) { return x.grad()[0].item<double>(); }

TEST(SavedTensorScope, GivesBackwardWhatItsHooksReturn) {
  Seen seen{.factor = 10};
  const at::Tensor x = leaf(2), before = x * x;
  at::Tensor within;
  {
    const SavedTensorScope scope(scaling(seen));
    within = x * x;
  }
  const at::Tensor after = x * x;
  EXPECT_EQ(seen.packed, 2);
  within.sum().backward();
  EXPECT_EQ(seen.unpacked, 2);
  EXPECT_EQ(gradient_of(x), 40);
  before.sum().backward();
  after.sum().backward();
  EXPECT_EQ(gradient_of(x), 48) << "hooks outside of their scope";
}

TEST(SavedTensorScope, ReplacesOuterOnesUntilItEnds) {
  Seen outer, inner;
  const at::Tensor x = leaf(2);
  const SavedTensorScope first(scaling(outer));
  {
    const SavedTensorScope second(scaling(inner));
    static_cast<void>(x.exp());
  }
  EXPECT_EQ(outer.packed, 0);
  EXPECT_EQ(inner.packed, 1);
  static_cast<void>(x.exp());
  EXPECT_EQ(outer.packed, 1);
}

TEST(SavedTensorScope, WithoutHooksTensorsAreKeptAsEver) {
  const at::Tensor x = leaf(3);
  const SavedTensorScope scope([] { return std::unique_ptr<torch::autograd::SavedVariableHooks>(); });
  (x * x).sum().backward();
  EXPECT_EQ(gradient_of(x), 6);
}

TEST(SavedTensorScope, IsOfItsThread) {
  Seen seen;
  const SavedTensorScope scope(scaling(seen));
  std::thread([] { static_cast<void>(leaf(2).exp()); }).join();
  EXPECT_EQ(seen.packed, 0);
}

}  // namespace
}  // namespace fsdp::util
