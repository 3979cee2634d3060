#include "model/nn/stage.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "base/util/error.h"
#include "model/nn/layers.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

class Scribe final : public StageHook {
 public:
  Scribe(std::string name, std::vector<std::string>& log) : name_(std::move(name)), log_(log) {}
  at::Tensor around(Stage& stage, const at::Tensor& input, const Next& next) override {
    log_.push_back(name_ + " enters " + stage.type_name());
    at::Tensor output = next(input);
    log_.push_back(name_ + " leaves");
    return output;
  }

 private:
  std::string name_;
  std::vector<std::string>& log_;
};

TEST(Stage, RunsHooksOutermostFirst) {
  testing::MatrixStage stage(2, 2);
  std::vector<std::string> log;
  stage.attach(std::make_shared<Scribe>("shard", log));
  stage.attach(std::make_shared<Scribe>("checkpoint", log));
  stage.forward(at::ones({1, 2}));
  EXPECT_EQ(log, (std::vector<std::string>{"shard enters block", "checkpoint enters block",
                                           "checkpoint leaves", "shard leaves"}));
  stage.detach_hooks();
  stage.forward(at::ones({1, 2}));
  EXPECT_EQ(log.size(), 4u);
}

class Noter final : public CallHook {
 public:
  Noter(std::string name, std::string& log) : name_(std::move(name)), log_(log) {}
  std::shared_ptr<void> before(const CallTensors&) override {
    log_ += name_;
    return nullptr;
  }

 private:
  std::string name_;
  std::string& log_;
};

template <typename Module>
void expect_hooks_are_replaced_in_place(Module& module) {
  std::string log;
  std::vector<std::shared_ptr<Noter>> hooks;
  for (const char* name : {"a", "b", "c", "d"}) hooks.push_back(std::make_shared<Noter>(name, log));
  const auto called = [&] {
    log.clear();
    module.forward(at::ones({1, 2}));
    return log;
  };
  for (int i = 0; i < 3; ++i) module.attach(hooks[i]);
  EXPECT_EQ(called(), "abc");
  module.replace(*hooks[1], hooks[3]);
  EXPECT_EQ(called(), "adc");
  module.replace(*hooks[1], nullptr);  // is not attached
  EXPECT_EQ(called(), "adc");
  module.replace(*hooks[0], nullptr);
  EXPECT_EQ(called(), "dc");
}

TEST(Hookable, PutsAHookInThePlaceOfAnother) {
  testing::MatrixStage stage(2, 2);
  expect_hooks_are_replaced_in_place(stage);
  HookedModule<torch::nn::LinearImpl> linear(2, 2);
  expect_hooks_are_replaced_in_place(linear);
}

/// Keeps the continuation of the last call.
class Keeper final : public StageHook {
 public:
  at::Tensor around(Stage&, const at::Tensor& input, const Next& next) override {
    kept = next;
    return next(input);
  }
  Next kept;
};

TEST(Stage, LetsAHookGoOnLaterAsAtTheTimeOfTheCall) {
  std::vector<std::string> log;
  auto stage = std::make_shared<testing::MatrixStage>(2, 2);
  auto keeper = std::make_shared<Keeper>();
  stage->attach(keeper);
  stage->attach(std::make_shared<Scribe>("inner", log));
  at::Tensor input = at::ones({1, 2});
  at::Tensor output = stage->forward(input);
  stage->detach_hooks();
  std::weak_ptr<Stage> alive = stage;
  stage.reset();
  EXPECT_TRUE(keeper->kept(input).equal(output));
  EXPECT_EQ(log.size(), 4u);
  EXPECT_FALSE(alive.expired());
  keeper->kept = {};
  EXPECT_TRUE(alive.expired());
}

TEST(CallHook, AroundIsRefusedByAModuleThatIsNoStage) {
  HookedModule<torch::nn::LinearImpl> linear(2, 2);
  linear.attach(std::make_shared<Keeper>());
  EXPECT_THROW(linear.forward(at::ones({1, 2})), util::Error);
}

TEST(StageAdaptor, KeepsNamesAndTensorsOfTheModuleBehindIt) {
  auto linear = std::make_shared<Linear>(2, 3);
  linear->parameters()[0].data().fill_(1.0);
  StageAdaptor<Linear> stage(linear, "linear");
  ASSERT_EQ(stage.named_parameters().keys(), std::vector<std::string>{"weight"});
  EXPECT_TRUE(stage.parameters()[0].is_same(linear->parameters()[0]));
  EXPECT_TRUE(at::equal(stage.forward(at::ones({1, 2})), at::full({1, 3}, 2.0f)));
}

}  // namespace
}  // namespace fsdp::nn
