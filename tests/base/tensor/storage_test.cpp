#include "base/tensor/storage.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

TEST(Storage, ComesBackUnderTheViewsThatWereMadeOfIt) {
  at::Tensor flat = at::arange(8, at::kFloat);
  at::Tensor view = flat.narrow(0, 2, 4).view({2, 2});
  free_storage(flat);
  EXPECT_TRUE(storage_is_free(view));
  free_storage(flat);
  restore_storage(flat, 8 * 4);
  flat.copy_(at::arange(8, at::kFloat) * 2);
  EXPECT_TRUE(at::equal(view, at::tensor({4.0f, 6.0f, 8.0f, 10.0f}).view({2, 2})));
}

TEST(Storage, TensorsSavedByAutogradAreValidAgainAfterRestoring) {
  at::Tensor flat = at::ones({4});
  at::Tensor weight = at::empty({2, 2}).requires_grad_();
  weight.set_data(flat.view({2, 2}));
  at::Tensor x = at::ones({1, 2}).requires_grad_();
  at::Tensor y = at::linear(x, weight);
  free_storage(flat);
  restore_storage(flat, 16);
  flat.fill_(3.0);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({1, 2}, 6.0f)));
}

TEST(Storage, ATensorOfTheMetaDeviceIsPointedAtMemory) {
  at::Tensor weight = at::empty({2, 2}, at::TensorOptions().device(at::kMeta)).requires_grad_();
  at::Tensor same = weight;
  // A graph that still holds what autograd keeps of the tensor.
  at::Tensor earlier = at::linear(at::ones({1, 2}, weight.options()), weight);
  point_at(weight, at::full({4}, 3.0f).view({2, 2}));
  EXPECT_TRUE(same.is_cpu() && same.is_leaf() && same.requires_grad());
  at::linear(at::ones({1, 2}), same).sum().backward();
  EXPECT_TRUE(at::equal(same.grad(), at::ones({2, 2})));
  point_at(same, at::full({2, 2}, 4.0f));
  EXPECT_EQ(weight.sum().item<float>(), 16);
}

}  // namespace
}  // namespace fsdp::util
