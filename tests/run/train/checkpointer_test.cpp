#include "run/train/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/manifest/folders.h"
#include "state/manifest/run_identity.h"
#include "support/checkpoint_contents.h"
#include "support/checkpointer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using testing::contents_of;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_equal_checkpoints;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::same_bits;
using testing::TemporaryFolder;
namespace fs = std::filesystem;

TEST_F(CheckpointerTest, TheNextStepAtAnotherWorldSizeHasTheSameLoss) {
  config_.data.micro_batch_size = 12;
  config_.checkpoint.resume = save_run(1, config_);
  std::map<int, double> losses;
  for (int world : {1, 2, 3, 4}) {
    config::Config config = config_;
    config.run.output_dir = folder_ / ("out" + std::to_string(world));
    config.data.micro_batch_size = 12 / world;
    on_ranks(world, config, [&](Rank& rank) {
      double loss = rank.train(1);
      std::lock_guard lock(mutex_);
      losses[world] = loss;
    });
    EXPECT_NEAR(losses[world], losses[1], 1e-6 * losses[1]) << world;
  }
}

TEST_F(CheckpointerTest, AnAsynchronousSaveHoldsTheStateOfItsStep) {
  fs::path synchronous = save_run(2, config_);
  config_.run.output_dir = folder_ / "other";
  config_.checkpoint.asynchronous = true;
  on_ranks(2, config_, [](Rank& rank) {
    rank.train(2);
    rank.checkpointer.save(rank.position);
    rank.train(3);
    rank.checkpointer.finish();
  });
  expect_equal_checkpoints(synchronous, folder_ / "other/step-00000002");
}

TEST_F(CheckpointerTest, AnAsynchronousSaveIsCompletedAtLaterStepBoundaries) {
  config_.checkpoint.asynchronous = true;
  on_ranks(3, config_, [](Rank& rank) {
    rank.train(1);
    rank.checkpointer.save(rank.position);
    while (rank.checkpointer.saved_step() != 1) {
      rank.train(1);
      rank.checkpointer.poll();
    }
    EXPECT_EQ(checkpoint::incompleteness(rank.checkpointer.last_saved()), "");
    EXPECT_EQ(contents_of(rank.checkpointer.last_saved()).empty(), false);
  });
}

TEST_F(CheckpointerTest, ASecondAsynchronousSaveWaitsForTheFirst) {
  config_.checkpoint.asynchronous = true;
  on_ranks(2, config_, [&](Rank& rank) {
    for (int i = 0; i < 3; ++i) {
      rank.train(1);
      rank.checkpointer.save(rank.position);
      EXPECT_EQ(rank.checkpointer.saved_step().value_or(0), i);
    }
    rank.checkpointer.finish();
  });
  EXPECT_EQ(checkpoint::find_checkpoints(folder_ / "out").complete.size(), 3u);
}

TEST_F(CheckpointerTest, AnAbandonedAsynchronousSaveIsNotACheckpointAndIsRemovedLater) {
  config_.checkpoint.asynchronous = true;
  on_ranks(2, config_, [](Rank& rank) {
    rank.train(1);
    rank.checkpointer.save(rank.position);
  });
  fs::path torn = folder_ / "out/step-00000001";
  EXPECT_TRUE(fs::exists(torn));
  EXPECT_NE(checkpoint::incompleteness(torn), "");
  on_ranks(2, config_, [](Rank& rank) { EXPECT_EQ(rank.position.step, 0); });
  EXPECT_FALSE(fs::exists(torn));
  EXPECT_THAT(lines_, Contains(AllOf(HasSubstr("starting from scratch"), HasSubstr(torn.string()))));
  EXPECT_THAT(lines_, Contains(AllOf(HasSubstr("removed "), HasSubstr(torn.string()))));
}

TEST_F(CheckpointerTest, WritesOneFileWhereTheKindIsFull) {
  config_.checkpoint.kind = "full";
  const fs::path saved = save_run(2, config_);
  EXPECT_TRUE(fs::exists(saved / checkpoint::kFullFileName));
  EXPECT_FALSE(fs::exists(saved / "rank-00000.h5"));
}

TEST_F(CheckpointerTest, AStepThatHasLostItsManifestIsRenamedWithAWarning) {
  const fs::path saved = save_run(2, config_);
  fs::remove(saved / "manifest.json");
  on_ranks(2, config_, [](Rank& rank) { EXPECT_EQ(rank.position.step, 0); });
  EXPECT_TRUE(fs::exists(saved.string() + ".incomplete-1/rank-00000.h5"));
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("without manifest.json"), HasSubstr("incomplete-1"))));
}

TEST_F(CheckpointerTest, AnotherRunsCheckpointInTheFolderIsNotResumedAndRemovesNothing) {
  const fs::path own = save_run(1, config_);
  config::Config other = config_;
  other.run.output_dir = folder_ / "other";
  on_ranks(1, other, [](Rank& rank) {
    for (int i = 0; i < 3; ++i) rank.train(1);
    rank.checkpointer.save(rank.position);
    rank.checkpointer.finish();
  });
  const fs::path copied = folder_ / "out/step-00000003";
  fs::copy(folder_ / "other/step-00000003", copied, fs::copy_options::recursive);
  const auto [kind, text] = error_of([&] { on_ranks(1, config_, [](Rank&) {}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text,
              AllOf(HasSubstr("step-00000003"), HasSubstr("is of the run"), HasSubstr("checkpoint.resume")));

  config_.checkpoint.resume = own;
  config_.checkpoint.keep_last = 2;
  on_ranks(1, config_, [](Rank& rank) {
    EXPECT_EQ(rank.position.step, 2);
    rank.train(2);
    rank.checkpointer.save(rank.position);
    rank.checkpointer.finish();
  });
  EXPECT_TRUE(fs::exists(own) && fs::exists(copied)) << "of the run's own there are two";
  config_.checkpoint.resume = "auto";
  on_ranks(1, config_, [](Rank& rank) { EXPECT_EQ(rank.position.step, 4); });
}

TEST_F(CheckpointerTest, ARunThatGoesOnInAnotherFolderIsAnother) {
  config_.checkpoint.resume = save_run(1, config_);
  config_.run.output_dir = folder_ / "fork";
  on_ranks(1, config_, [](Rank&) {});
  EXPECT_EQ(checkpoint::recorded_run(folder_ / "out").size(), 16u);
  EXPECT_EQ(checkpoint::recorded_run(folder_ / "fork").size(), 16u);
  EXPECT_NE(checkpoint::recorded_run(folder_ / "fork"), checkpoint::recorded_run(folder_ / "out"));
}

TEST_F(CheckpointerTest, AFailedSaveIsReportedAndTriedAgainAtTheNext) {
  struct Save {
    const char* kind;
    bool asynchronous;
  };
  for (const Save& way : {Save{"sharded", false}, Save{"full", false}, Save{"sharded", true}}) {
    warnings_.clear();
    fs::remove_all(folder_ / "out");
    config_.checkpoint.kind = way.kind;
    config_.checkpoint.asynchronous = way.asynchronous;
    on_ranks(1, config_, [&](Rank& rank) {
      rank.train(1);
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
      block();
      rank.train(1);
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
      auto [kind, text] = error_of([&] { rank.checkpointer.require_last_save(); });
      EXPECT_EQ(kind, ErrorKind::kIo);
      EXPECT_THAT(text, AllOf(HasSubstr("step 2 could not be saved"), HasSubstr("step-00000001")));
      EXPECT_EQ(rank.checkpointer.saved_step(), 1);
      unblock();
      rank.train(1);
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
      EXPECT_NO_THROW(rank.checkpointer.require_last_save());
      EXPECT_EQ(rank.checkpointer.saved_step(), 3);
    });
    EXPECT_THAT(warnings_,
                ::testing::ElementsAre(AllOf(HasSubstr("step 2 could not be saved"),
                                             HasSubstr("training continues until the next save"))));
    EXPECT_EQ(checkpoint::find_checkpoints(folder_ / "out").complete.size(), 2u);
  }
}

TEST_F(CheckpointerTest, AFailureAfterTheLastStepDoesNotSayThatTrainingContinues) {
  on_ranks(2, config_, [&](Rank& rank) {
    rank.train(1);
    rank.checkpointer.end_of_training();
    if (rank.number == 0) block();
    rank.checkpointer.save(rank.position);
    rank.checkpointer.finish();
    auto [kind, text] = error_of([&] { rank.checkpointer.require_last_save(); });
    EXPECT_EQ(kind, ErrorKind::kIo);
    EXPECT_THAT(
        text, AllOf(HasSubstr("step 1 could not be saved"), ::testing::Not(HasSubstr("training continues"))));
  });
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointerTest, AFailureOfOneRankIsOneOnEveryRank) {
  std::atomic<int> failures = 0;
  config_.checkpoint.asynchronous = true;
  on_ranks(3, config_, [&](Rank& rank) {
    rank.train(1);
    if (rank.number == 0) block();  // rank 0 makes the folder
    rank.checkpointer.save(rank.position);
    rank.checkpointer.finish();
    failures += error_of([&] { rank.checkpointer.require_last_save(); }).first == ErrorKind::kIo;
    rank.train(1);  // the ranks are still together
  });
  EXPECT_EQ(failures, 3);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(CheckpointerTest, NothingIsSavedIntoAFolderThatNoLongerBelongsToTheRun) {
  for (bool asynchronous : {false, true}) {
    config_.checkpoint.asynchronous = asynchronous;
    std::atomic<int> failures = 0;
    on_ranks(2, config_, [&](Rank& rank) {
      rank.train(1);
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
      if (rank.number == 0) fs::rename(folder_ / "out", folder_ / "away");
      rank.train(1);
      auto [kind, text] = error_of([&] { rank.checkpointer.save(rank.position); });
      failures += kind == ErrorKind::kIo && text.find("removed, replaced or unmounted") != std::string::npos;
    });
    EXPECT_EQ(failures, 2);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    fs::remove_all(folder_ / "away");
  }
}

TEST_F(CheckpointerTest, KeepsTheLastAndEachMultiple) {
  config_.checkpoint.keep_last = 2;
  config_.checkpoint.keep_every = 3;
  config_.checkpoint.asynchronous = true;
  on_ranks(2, config_, [](Rank& rank) {
    for (int i = 0; i < 8; ++i) {
      rank.train(1);
      rank.checkpointer.save(rank.position);
    }
    rank.checkpointer.finish();
  });
  std::vector<int64_t> kept;
  for (const auto& found : checkpoint::find_checkpoints(folder_ / "out").complete) kept.push_back(found.step);
  EXPECT_EQ(kept, (std::vector<int64_t>{3, 6, 7, 8}));
}

TEST_F(CheckpointerTest, KeepsTheBestUntilAnotherIs) {
  config_.checkpoint.keep_last = 1;
  auto steps = [&] {
    std::vector<int64_t> kept;
    for (const auto& found : checkpoint::find_checkpoints(folder_ / "out").complete) {
      kept.push_back(found.step);
    }
    return kept;
  };
  for (bool asynchronous : {false, true}) {
    config_.checkpoint.asynchronous = asynchronous;
    on_ranks(2, config_, [&](Rank& rank) {
      auto best_of_step = [&](int64_t step) {
        rank.train(1);
        step == rank.position.step ? rank.checkpointer.save_best(rank.position)
                                   : rank.checkpointer.save(rank.position);
      };
      const int64_t first = rank.position.step;
      for (int64_t i = 1; i <= 4; ++i) best_of_step(first + 2);
      rank.checkpointer.finish();
      if (rank.number == 0) {
        EXPECT_EQ(steps(), (std::vector<int64_t>{first + 2, first + 4}));
        EXPECT_EQ(checkpoint::best_step(folder_ / "out"), first + 2);
      }
      // One that is there already is only marked, and the best before it goes.
      rank.checkpointer.save_best(rank.position);
      if (rank.number == 0) {
        EXPECT_EQ(steps(), std::vector<int64_t>{first + 4});
        EXPECT_EQ(fs::read_symlink(folder_ / "out/best"), checkpoint::step_folder_name(first + 4));
      }
    });
  }
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CheckpointerTest, WarnsWhereTheBestCannotBeMarked) {
  fs::create_directories(folder_ / "out/best");
  on_ranks(2, config_, [](Rank& rank) {
    rank.train(1);
    rank.checkpointer.save_best(rank.position);
    rank.checkpointer.require_last_save();
  });
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_.front(), HasSubstr("step 1 is not marked as the best checkpoint"));
}

TEST_F(CheckpointerTest, ASecondRunInTheFolderIsRefused) {
  on_ranks(1, config_, [&](Rank&) {
    auto [kind, text] = error_of([&] { on_ranks(2, config_, [](Rank&) { FAIL(); }); });
    EXPECT_EQ(kind, ErrorKind::kUsage);
    EXPECT_THAT(text, AllOf(HasSubstr("is in use by another run"), HasSubstr((folder_ / "out").string()),
                            HasSubstr("process " + std::to_string(::getpid())), HasSubstr("wait for it")));
  });
  on_ranks(1, config_, [](Rank&) {});
}

TEST_F(CheckpointerTest, WarnsOnceOfPatternsOfTheOptimizerThatMatchNothing) {
  config_.optimizer.no_decay = {"*norm*", "*.bias"};
  on_ranks(2, config_, [](Rank&) {});
  EXPECT_THAT(warnings_, IsEmpty());
  config_.optimizer.no_decay = {"*.ln_1.*", "*.bias"};
  config_.optimizer.groups = {{.pattern = {"*"}, .lr_scale = 2}, {.pattern = {"*mpl*"}, .lr_scale = 3}};
  on_ranks(2, config_, [](Rank&) {});
  EXPECT_THAT(
      warnings_,
      ElementsAre(AllOf(HasSubstr("optimizer.no_decay has no effect"), HasSubstr("*.ln_1.*, *.bias")),
                  AllOf(HasSubstr("optimizer.groups, number 2 has no effect"),
                        HasSubstr("*mpl* matches no parameter"), HasSubstr("did you mean \"*mlp*\"?"))));
  warnings_.clear();
  config_.optimizer = {.no_decay = {"*norm*", "*.q_porj.*"}};
  on_ranks(1, config_, [](Rank&) {});
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("*.q_porj.* matches no parameter"),
                                           HasSubstr("did you mean \"*.q_proj.*\"?"))));
}

TEST_F(CheckpointerTest, AveragesMayBeSwitchedOnAndOff) {
  save_run(2, config_);
  config_.optimizer.ema_decay = 0.5;
  on_ranks(1, config_, [](Rank& rank) {
    EXPECT_EQ(rank.position.step, 2);
    const optim::Optimizer& optimizer = *rank.parts.optimizer;
    for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
      const at::Tensor& value = optimizer.parameters()[i].value;
      EXPECT_TRUE(same_bits(optimizer.state("ema", i), value)) << i;
    }
    rank.train(1);
    rank.checkpointer.save(rank.position);
  });
  EXPECT_THAT(lines_, Contains(HasSubstr("has no averages of the weights; they start from its weights")));
  config_.optimizer.ema_decay = 0;
  on_ranks(2, config_, [](Rank& rank) { EXPECT_EQ(rank.position.step, 3); });
  EXPECT_THAT(lines_, Contains(HasSubstr("averages of the weights in the checkpoint are ignored")));
}

TEST_F(CheckpointerTest, WeightsInSixteenBitsAreTheSameAtAnyWorldSizeAndLayout) {
  for (const char* type : {"bfloat16", "float16"}) {
    config_.fsdp.param_storage = config_.mixed_precision.param_dtype = type;
    config_.mixed_precision.keep_float32 = {"*norm*"};
    config_.data.micro_batch_size = 6;
    const std::string name = std::string(type) + " saved";
    config::Config before = config_, after = config_;
    before.run.output_dir = folder_ / name;
    const fs::path saved = save_run(2, before);
    for (const auto& [tensor, entry] : checkpoint::read_manifest(saved).tensors) {
      const bool is_wide = !tensor.starts_with("model/") || tensor.find("norm") != std::string::npos;
      EXPECT_EQ(entry.dtype, is_wide                          ? at::kFloat
                             : std::string(type) == "float16" ? at::kHalf
                                                              : at::kBFloat16)
          << tensor;
    }
    for (int world : {1, 3, 4}) {
      after.run.output_dir = folder_ / (name + std::to_string(world));
      after.checkpoint.resume = saved;
      after.data.micro_batch_size = 12 / world;
      after.fsdp.layout = world == 3 ? "per_parameter" : "flat";
      after.fsdp.strategy = world == 4 ? "no_shard" : "full_shard";
      after.checkpoint.kind = world == 1 ? "full" : "sharded";
      on_ranks(world, after, [](Rank& rank) {
        rank.checkpointer.save(rank.position);
        rank.checkpointer.finish();
      });
      expect_equal_checkpoints(saved, fs::path(after.run.output_dir) / "step-00000002");
    }
  }
}

TEST_F(CheckpointerTest, WeightsMayBeKeptInAnotherTypeFromACheckpointOn) {
  struct Continued {
    const char *before, *after, *told;
  };
  for (const Continued& types :
       {Continued{"float32", "bfloat16", "in float32 are kept in bfloat16 from now on, rounded"},
        Continued{"bfloat16", "float32", "in bfloat16 are kept in float32 from now on (fsdp"}}) {
    SCOPED_TRACE(types.told);
    config::Config config = config_;
    config.run.output_dir = folder_ / (std::string("saved in ") + types.before);
    config.fsdp.param_storage = types.before;
    const fs::path saved = save_run(2, config);
    for (bool as_weights : {false, true}) {
      lines_.clear();
      config.run.output_dir =
          folder_ / (std::string("kept in ") + types.after + (as_weights ? ", weights" : ""));
      config.fsdp.param_storage = types.after;
      (as_weights ? config.checkpoint.init_from : config.checkpoint.resume) = saved;
      if (as_weights) config.checkpoint.resume = "auto";
      on_ranks(3, config, [&](Rank& rank) {
        EXPECT_EQ(rank.position.step, as_weights ? 0 : 2);
        rank.checkpointer.save(rank.position);
        rank.checkpointer.finish();
      });
      const auto before = contents_of(saved),
                 after = contents_of(fs::path(config.run.output_dir) /
                                     (as_weights ? "step-00000000" : "step-00000002"));
      ASSERT_EQ(before.size(), after.size());
      for (const auto& [name, tensor] : before) {
        if (name.starts_with("model/")) {
          const at::ScalarType type = after.at(name).scalar_type();
          EXPECT_EQ(type, std::string(types.after) == "float32" ? at::kFloat : at::kBFloat16) << name;
          EXPECT_TRUE(at::equal(after.at(name), tensor.to(type))) << name;
        } else if (!as_weights) {
          EXPECT_TRUE(same_bits(after.at(name), tensor)) << name;
        }
      }
      EXPECT_THAT(lines_, Contains(HasSubstr(types.told)));
    }
  }
}

TEST_F(CheckpointerTest, StatesMayBeKeptInAnotherTypeFromACheckpointOn) {
  for (const std::string after : {"bfloat16", "float32"}) {
    config::Config config = config_;
    config.run.output_dir = folder_ / ("saved before " + after);
    config.optimizer.state_dtype = after == "float32" ? "bfloat16" : "float32";
    const fs::path saved = save_run(2, config);
    lines_.clear();
    config.run.output_dir = folder_ / ("kept in " + after);
    config.optimizer.state_dtype = after;
    config.checkpoint.resume = saved;
    on_ranks(3, config, [&](Rank& rank) {
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
    });
    const auto stored = contents_of(saved),
               kept = contents_of(fs::path(config.run.output_dir) / "step-00000002");
    ASSERT_EQ(stored.size(), kept.size());
    for (const auto& [name, tensor] : stored) {
      const bool is_state = name.starts_with("optimizer/");
      const at::ScalarType type = is_state && after == "bfloat16" ? at::kBFloat16 : at::kFloat;
      EXPECT_EQ(kept.at(name).scalar_type(), type) << name;
      EXPECT_TRUE(at::equal(kept.at(name), tensor.to(type))) << name;
    }
    EXPECT_THAT(lines_, Contains(HasSubstr("are kept in " + after + " from now on")));
    EXPECT_THAT(lines_, Contains(HasSubstr("(optimizer.state_dtype)")));
  }
}

TEST_F(CheckpointerTest, AMisfitIsToldInAFewNamesWithARemedy) {
  save_run(1, config_);
  config_.optimizer.name = "sgd";
  const auto [kind, text] = error_of([&] { on_ranks(1, config_, [](Rank&) {}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, ContainsRegex(" and [0-9]+ more; "));
  EXPECT_THAT(text, HasSubstr("checkpoint.init_from"));
  EXPECT_LT(text.size(), 1500u);
}

TEST_F(CheckpointerTest, AResumeRefusesOptimizerStateThatItHasNoPlaceFor) {
  save_run(2, config_);
  config_.optimizer.name = "sgd";
  auto [kind, text] = error_of([&] { on_ranks(1, config_, [](Rank&) {}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("unexpected: optimizer/exp_avg/"));
}

TEST_F(CheckpointerTest, RecordsTheHyperparametersOfTheNextStepForPyTorch) {
  config_.optimizer.no_decay = {"*norm*"};
  config_.optimizer.lr = 0.5;
  config_.lr_scheduler.name = "linear";
  config_.training.steps = 5;
  for (const int world : {1, 2}) {
    config_.run.output_dir = folder_ / ("of" + std::to_string(world));
    const auto groups = checkpoint::read_manifest(save_run(world, config_)).training.at("param_groups");
    ASSERT_EQ(groups.size(), 2u) << groups.dump();
    for (const auto& group : groups) {
      const bool decays = group.at("weight_decay") != 0;
      EXPECT_EQ(group.contains("params"), !decays) << "the largest group has all other parameters";
      EXPECT_EQ(group.at("initial_lr"), 0.5);
      EXPECT_DOUBLE_EQ(group.at("lr").get<double>(), 0.25) << "of step 3 of 5";
      EXPECT_EQ(group.at("betas"), nlohmann::json(config_.optimizer.betas));
      EXPECT_EQ(group.at("eps"), 1e-8);
      if (decays) continue;
      for (const auto& name : group.at("params")) EXPECT_THAT(name.get<std::string>(), HasSubstr("norm"));
    }
  }
  config_.optimizer.name = "lion";
  config_.run.output_dir = folder_ / "lion";
  EXPECT_FALSE(checkpoint::read_manifest(save_run(1, config_)).training.contains("param_groups"));
}

}  // namespace
}  // namespace fsdp::train
