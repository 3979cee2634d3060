// Experts as FSDP units of their own: training is that of the whole model on any number of ranks, also where
// ranks have no tokens for some experts.

#include "model/nn/experts.h"

#include <gtest/gtest.h>

#include <array>

#include "shard/engine/wrap_policy.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::RunPlan;
using testing::RunResult;

/// Of several micro-batches of 3 rows on each rank. Each expert is a unit, what else a block has another.
RunPlan experts_plan(const std::string& family) {
  RunPlan plan;
  plan.model = testing::family_options(family);
  plan.steps = 5;
  plan.global_rows = 12;
  plan.shard.min_num_params = 250;
  plan.learning_rate = 0.2;
  return plan;
}

/// On 1, 2 and 4 ranks, with the same micro-batches.
void expect_same_losses(RunPlan plan, const std::string& what) {
  plan.accumulation = 4;
  const RunResult expected = train_sharded(1, plan);
  for (const int world : {2, 4}) {
    plan.accumulation = 4 / world;
    const RunResult found = train_sharded(world, plan);
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-6) << what << ", " << world << " ranks, step " << i;
    }
  }
  EXPECT_LT(expected.losses.back(), expected.losses.front()) << what;
}

constexpr const char* kFamilies[] = {"mixtral", "qwen3_moe"};

TEST(ShardedExperts, AreUnitsLikeBlocks) {
  for (const char* family : kFamilies) {
    const RunPlan plan = experts_plan(family);
    auto model = nn::make_decoder(plan.model, at::kMeta);
    int64_t experts = 0, blocks = 0;
    for (const UnitPlan& unit : plan_units(*model, plan.shard)) {
      experts += unit.name.find(".experts.") != std::string::npos;
      blocks += unit.module->type_name() == "block";
    }
    const bool mixtral = plan.model.architecture == "mixtral";
    EXPECT_EQ(experts, mixtral ? 8 : 5) << family;
    EXPECT_EQ(blocks, plan.model.num_hidden_layers) << family;
  }
  RunPlan plan = experts_plan("mixtral");
  plan.shard.min_num_params = 1 << 20;
  plan.shard.wrap_stages = {"expert"};
  auto model = nn::make_decoder(plan.model, at::kMeta);
  EXPECT_EQ(plan_units(*model, plan.shard).size(), 9u);
}

TEST(ShardedExperts, TrainAsTheWholeModel) {
  for (const char* family : kFamilies) {
    RunPlan plan = experts_plan(family);
    const RunResult expected = train_unsharded(plan);
    for (const int world : {1, 2, 4}) {
      expect_close_runs(train_sharded(world, plan), expected, concat(family, ", ", world, " ranks"));
    }
    for (const int64_t threshold : {1, 100'000}) {
      plan.shard.min_num_params = threshold;
      expect_close_runs(train_sharded(2, plan), expected, concat(family, ", threshold ", threshold));
    }
  }
}

TEST(ShardedExperts, HaveTheSameLossesOnAnyNumberOfRanks) {
  for (const char* family : kFamilies) {
    RunPlan plan = experts_plan(family);
    plan.router_aux_loss_coef = 0.1;
    expect_same_losses(plan, family);
    plan.recompute = {"block"};
    plan.no_sync = true;
    expect_same_losses(plan, concat(family, ", recomputed, without sync"));
  }
}

TEST(ShardedExperts, AreBalancedAlikeWithAndWithoutRecomputation) {
  RunPlan plan = experts_plan("mixtral");
  const double plain = train_sharded(2, plan).losses.front();
  plan.router_aux_loss_coef = 0.1;
  const RunResult expected = train_sharded(2, plan);
  EXPECT_GT(expected.losses.front(), plain + 0.1);
  for (const char* type : {"block", "feed_forward", "expert"}) {
    plan.recompute = {type};
    expect_identical_runs(train_sharded(2, plan), expected, type);
  }
}

/// Whether the expert has ever had no tokens.
class NotesEmpty final : public nn::CallHook {
 public:
  explicit NotesEmpty(bool& is_empty) : is_empty_(is_empty) {}
  std::shared_ptr<void> before(const nn::CallTensors& inputs) override {
    is_empty_ = is_empty_ || inputs.front()->size(0) == 0;
    return nullptr;
  }
  void after(const nn::CallTensors&) override {}

 private:
  bool& is_empty_;
};

TEST(ShardedExperts, MayHaveNoTokensOnSomeRanks) {
  for (const bool recomputes : {false, true}) {
    RunPlan plan = experts_plan("mixtral");
    plan.model.num_experts = 8;
    plan.model.num_hidden_layers = 1;
    plan.global_rows = 4;
    plan.router_aux_loss_coef = 0.1;
    if (recomputes) plan.recompute = {"block"};
    expect_same_losses(plan, "few tokens");

    plan.steps = 1;
    std::array<std::array<bool, 8>, 4> empty{};  // by rank and expert
    plan.prepare = [&](int rank, nn::Stage& model) {
      size_t expert = 0;
      for (const auto& [name, stage] : nn::outermost_stages(model, {"expert"})) {
        bool& is_empty = empty[static_cast<size_t>(rank)][expert++];
        stage->attach(std::make_shared<NotesEmpty>(is_empty));
      }
    };
    train_sharded(4, plan);
    const std::array<bool, 8> never{};
    EXPECT_NE(empty[0], never);
    EXPECT_NE(empty[0], empty[3]) << "no expert has tokens on one of these ranks alone";
  }
}

TEST(ShardedExperts, MayBeFrozen) {
  RunPlan plan = experts_plan("mixtral");
  plan.frozen = {"*.experts.1.*", "*.0.*.experts.*"};
  const RunResult expected = train_unsharded(plan);
  for (const int world : {2, 4}) {
    expect_close_runs(train_sharded(world, plan), expected, concat(world, " ranks"));
  }
}

}  // namespace
}  // namespace fsdp::shard
