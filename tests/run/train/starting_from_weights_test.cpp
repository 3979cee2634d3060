// checkpoint.init_from: a run that begins with the weights of another run's checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_contents.h"
#include "support/checkpointer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::contents_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::same_bits;
namespace fs = std::filesystem;

class StartingFromWeights : public CheckpointerTest {
 protected:
  void SetUp() override {
    CheckpointerTest::SetUp();
    source_ = save_run(3, config_);
    config_.run.output_dir = folder_ / "new";
    config_.checkpoint.init_from = folder_ / "out";
  }

  /// What a run of this config begins with: saved at step 0.
  std::map<std::string, at::Tensor> beginning(int world_size = 2) {
    on_ranks(world_size, config_, [](Rank& rank) {
      EXPECT_EQ(rank.position.step, 0);
      EXPECT_EQ(rank.position.samples_seen, 0);
      EXPECT_EQ(rank.parts.optimizer->step_count(), 0);
      rank.checkpointer.save(rank.position);
    });
    return contents_of(folder_ / "new/step-00000000");
  }

  fs::path source_;
};

TEST_F(StartingFromWeights, TakesAllWeightsAndNoOptimizerState) {
  auto given = contents_of(source_), taken = beginning();
  for (const auto& [name, tensor] : taken) {
    if (name.starts_with("model/")) {
      EXPECT_TRUE(same_bits(tensor, given.at(name))) << name;
    } else {
      EXPECT_FALSE(tensor.any().item<bool>()) << name;
    }
  }
  EXPECT_THAT(lines_,
              Contains(AllOf(HasSubstr("starting from the weights of"), HasSubstr(source_.string()))));
}

TEST_F(StartingFromWeights, TakesThoseThatMatchAPattern) {
  auto given = contents_of(source_);
  config_.checkpoint.init_only = {"model.layers.1.*", "*embed*"};
  int same = 0;
  for (const auto& [name, tensor] : beginning()) {
    if (!name.starts_with("model/") || name.find("norm") != std::string::npos) continue;
    bool chosen = name.find("layers.1.") != std::string::npos || name.find("embed") != std::string::npos;
    EXPECT_EQ(same_bits(tensor, given.at(name)), chosen) << name;
    same += chosen;
  }
  EXPECT_GT(same, 2);
}

TEST_F(StartingFromWeights, RefusesPatternsThatMatchNoParameter) {
  config_.checkpoint.init_only = {"*embed*", "*.q_porj.*"};
  auto [kind, text] = error_of([&] { beginning(); });
  EXPECT_EQ(kind, ErrorKind::kUsage);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr(
              "checkpoint.init_only: the pattern \"*.q_porj.*\" must match names of parameters such as model."),
          HasSubstr("but matches none; did you mean \"*.q_proj.*\"?")));
  config_.checkpoint.init_only.clear();
  config_.checkpoint.init_missing = {"score.*"};
  EXPECT_THAT(error_of([&] { beginning(); }).second, AllOf(HasSubstr("checkpoint.init_missing: the pattern"),
                                                           HasSubstr("correct it or take it out")));
}

TEST_F(StartingFromWeights, ListsAllThatDoesNotFitAndAcceptsWhatMayBeMissing) {
  config_.model.num_hidden_layers = 4;
  auto [kind, text] = error_of([&] { beginning(); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, AllOf(HasSubstr("missing: "), HasSubstr("model/model.layers.3.self_attn.q_proj.weight"),
                          HasSubstr("model/model.layers.3.mlp.up_proj.weight")));
  EXPECT_FALSE(fs::exists(folder_ / "new"));

  config_.checkpoint.init_missing = {"model.layers.3.*"};
  auto given = contents_of(source_), taken = beginning();
  EXPECT_GT(taken.size(), given.size());
  for (const auto& [name, tensor] : given) {
    if (!name.starts_with("model/")) continue;
    EXPECT_TRUE(same_bits(tensor, taken.at(name))) << name;
  }
  EXPECT_TRUE(taken.at("model/model.layers.3.mlp.up_proj.weight").any().item<bool>()) << "not initialised";
  EXPECT_THAT(lines_, Contains(HasSubstr("it lacks model/model.layers.3")));
}

TEST_F(StartingFromWeights, RefusesWeightsThatTheModelHasNoPlaceFor) {
  config_.model.num_hidden_layers = 2;
  auto [kind, text] = error_of([&] { beginning(); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, AllOf(HasSubstr("unexpected: "), HasSubstr("model/model.layers.2.mlp.up_proj.weight")));
  config_.checkpoint.init_only = {"*.layers.0.*", "*.layers.1.*"};
  beginning();
}

TEST_F(StartingFromWeights, DoesSoOnlyWhereNothingIsResumed) {
  beginning();
  on_ranks(2, config_, [](Rank& rank) {
    rank.train(1);
    rank.checkpointer.save(rank.position);
  });
  on_ranks(2, config_, [](Rank& rank) { EXPECT_EQ(rank.position.step, 1); });
  EXPECT_THAT(lines_, Contains(HasSubstr("init_from is not used")));
}

}  // namespace
}  // namespace fsdp::train
