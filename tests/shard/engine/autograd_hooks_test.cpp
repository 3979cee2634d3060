#include "shard/engine/autograd_hooks.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdp::shard {
namespace {

TEST(AutogradHooks, TellBeginAndEndAroundAllGradientsOfAStage) {
  at::Tensor input = at::ones({2, 3}).requires_grad_();
  at::Tensor w1 = at::ones({3, 3}).requires_grad_(), w2 = at::ones({3, 3}).requires_grad_();
  std::vector<std::string> events;
  at::Tensor x = when_backward_ends(input * 2, [&] {
    events.push_back("end");
    EXPECT_TRUE(w1.grad().defined());
    EXPECT_TRUE(w2.grad().defined());
  });
  // Two paths from the stage's input, as in a residual block.
  at::Tensor y = at::linear(x, w1) + at::linear(x, w2);
  when_backward_begins(y, [&] {
    events.push_back("begin");
    EXPECT_FALSE(w1.grad().defined());
    when_whole_backward_ends([&] {
      events.push_back("over");
      EXPECT_TRUE(input.grad().defined());
    });
  });
  y.sum().backward();
  EXPECT_EQ(events, (std::vector<std::string>{"begin", "end", "over"}));
  EXPECT_TRUE(at::equal(input.grad(), at::full({2, 3}, 12.0f)));
}

TEST(AutogradHooks, ExceptionsReachTheCallerOfBackward) {
  at::Tensor x = at::ones({3}).requires_grad_();
  at::Tensor y = x * 2;
  when_backward_begins(y, [] { throw std::runtime_error("from the hook"); });
  EXPECT_THROW(y.sum().backward(), std::runtime_error);
}

}  // namespace
}  // namespace fsdp::shard
