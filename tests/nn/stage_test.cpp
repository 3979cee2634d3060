#include "nn/stage.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "nn/layers.h"
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
