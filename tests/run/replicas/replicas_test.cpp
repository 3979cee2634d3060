// Runs with replicas, epoch by epoch, on threads as ranks: what a rank keeps between two epochs, and who
// gives it to whom. tests/e2e/replicas_test.cpp has processes that die.

#include "run/replicas/replicas.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <span>

#include "base/util/file.h"
#include "comm/api/group_failure.h"
#include "run/replicas/kept_state.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/forwarding_communicator.h"
#include "support/late_targets.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

/// The answer of a collective is lost: the others have it, and go on.
class LosesAnAnswer final : public testing::ForwardingCommunicator {
 public:
  /// That of the `count`th collective of the unit; requests to stop a validation, of one number, do not
  /// count.
  LosesAnAnswer(comm::Communicator& inner, std::string unit, int count)
      : ForwardingCommunicator(inner), unit_(std::move(unit)), left_(count) {}

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    auto work = call.issue(inner(), site);
    if (site.unit != unit_ || call.payload().numel() == 1 || --left_ != 0) return work;
    work->wait();
    throw comm::GroupError("lost", {.silent_ranks = {1}});
  }

 private:
  std::string unit_;
  int left_;
};

class ReplicasTest : public TrainerTest {
 protected:
  static constexpr int kReplicas = 2, kSize = 2;

  void SetUp() override {
    TrainerTest::SetUp();
    config_.training.reproducible = config::Reproducible::kWorldSize;
    config_.training.global_batch_size = 8;
    config_.training.gradient_accumulation_steps = 0;
    config_.evaluation.interval_steps = 2;
    config_.mesh.dcn = -1;
    config_.mesh.data = kSize;
    config_.fsdp.strategy = shard::Strategy::kHybridShard;
    config_.checkpoint.save_at_end = true;
    config_.checkpoint.resume = "never";
  }

  struct Leaves {
    int after_step = 0;     ///< when a change is due on one rank; 0: never
    int loses_answer = -1;  ///< this rank, in the collective that tells so
    const char* unit = "request to stop";
    int nth = 0;  ///< of these collectives; 0: that of the step

    int count() const { return nth > 0 ? nth : after_step; }
  };

  launch::Epoch epoch(int number, std::vector<int> replicas, int64_t step = -1) const {
    return {.number = number,
            .replicas = std::move(replicas),
            .replica_size = kSize,
            .min_replicas = 1,
            .step = step,
            .sources = step < 0 ? std::vector<int>{} : std::vector<int>{0, 1}};
  }

  /// All ranks of the epoch take part until they leave it or have done all steps.
  void take_part(const launch::Epoch& epoch, const Leaves& leaves) {
    std::atomic<bool> finished = true;
    comm::run_ranks_as_threads(epoch.world_size(), [&](comm::Communicator& communicator) {
      const int rank = communicator.rank();
      const int home = epoch.replicas[static_cast<size_t>(rank / kSize)] * kSize + rank % kSize;
      KeptState& kept = kept_.at(static_cast<size_t>(home));
      kept.begin(epoch);
      int64_t step = std::max<int64_t>(epoch.step, 0);
      const auto change_is_due = [&] { return ++step == leaves.after_step && rank == 1; };
      std::shared_ptr<comm::Communicator> world = testing::borrowed(communicator);
      if (rank == leaves.loses_answer) {
        world = std::make_shared<LosesAnAnswer>(communicator, leaves.unit, leaves.count());
      }
      Trainer trainer(config_, world, {},
                      {.stop_requested = [] { return false; },
                       .membership = MembershipHooks{
                           .home_rank = home, .memory = &kept, .change_is_due = change_is_due}});
      try {
        if (!trainer.run().left) return;
      } catch (const util::Error& error) {  // on other ranks, because that one is gone
        EXPECT_GE(leaves.loses_answer, 0) << error.what();
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      }
      finished = false;
      trainer.keep_state();
    });
    EXPECT_EQ(finished, leaves.after_step == 0 && leaves.nth == 0);
  }

  /// Weights, optimizer state and metrics are those of one rank that nothing disturbed.
  void expect_undisturbed_result() {
    config::Config alone = config_;
    alone.run.output_dir = folder_ / "alone";
    alone.mesh = {};
    alone.fsdp.strategy = shard::Strategy::kFullShard;
    train(1, alone);
    const std::string last = concat("step-0000000", config_.training.steps);
    testing::expect_equal_checkpoints(folder_ / "alone" / last, folder_ / "out" / last);
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "validation_loss"}) {
      EXPECT_EQ(testing::values_of(folder_ / "out/metrics.jsonl", key),
                testing::values_of(folder_ / "alone/metrics.jsonl", key))
          << key;
    }
  }

  std::string obstacle() const { return obstacle_to_replicas(config_, kReplicas, epoch(1, {0, 1})); }

  /// In that round of 24 micro-batches of 6 ranks, after step 2, rank 0 is lost; the others have `leaves` of
  /// them.
  void lose_one_in_round(int round, int64_t leaves) {
    config_.data.micro_batch_size = 1;
    config_.training.global_batch_size = 24;
    take_part(epoch(1, {0, 1, 2}), {.after_step = 2});
    take_part(epoch(2, {0, 1, 2}, 2), {.loses_answer = 0, .unit = "losses of samples", .nth = round});
    for (size_t home = kSize; home < kept_.size(); ++home) {
      EXPECT_EQ(kept_[home].step(), 2);
      EXPECT_EQ(kept_[home].begun_leaves(), leaves) << home;
    }
  }

  std::array<KeptState, 3 * kSize> kept_;
};

TEST_F(ReplicasTest, AReplicaGoesOnAloneFromItsMemory) {
  take_part(epoch(1, {0, 1}), {.after_step = 3});
  for (const KeptState& kept : std::span(kept_).first(kReplicas * kSize)) {
    EXPECT_EQ(kept.step(), 3);
    EXPECT_FALSE(kept.can_finish_step());
  }
  take_part(epoch(2, {1}, 3), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, ANewReplicaReceivesTheStateFromTheOther) {
  take_part(epoch(1, {0}), {.after_step = 2});
  launch::Epoch both = epoch(2, {0, 1}, 2);
  both.behind = {2, 3};
  take_part(both, {.after_step = 4});
  // What it was given is whole: it goes on alone.
  take_part(epoch(3, {1}, 4), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, ARankFinishesAStepThatOthersHaveFinishedByItself) {
  take_part(epoch(1, {0, 1}), {.after_step = 3, .loses_answer = 0});
  EXPECT_EQ(kept_[0].step(), 2);
  EXPECT_TRUE(kept_[0].can_finish_step());
  EXPECT_EQ(kept_[1].step(), 3);
  take_part(epoch(2, {0}, 3), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, AStepWithoutTargetsIsDoneOnceByAll) {
  testing::write_late_targets(folder_ / "late.bin", 48, 24, config_.data.sequence_length,
                              config_.model.vocab_size);
  config_.data.train = config_.data.validation = {folder_ / "late.bin"};
  config_.data.train_on = data::TrainOn::kAssistant;
  config_.data.shuffle = false;  // the first three steps of six have no targets
  take_part(epoch(1, {0, 1}), {.after_step = 3, .loses_answer = 0});
  EXPECT_EQ(kept_[0].step(), 2);
  EXPECT_TRUE(kept_[0].can_finish_step());
  EXPECT_EQ(kept_[1].step(), 3);
  take_part(epoch(2, {0}, 3), {});
  config::Config alone = config_;
  alone.run.output_dir = folder_ / "alone";
  alone.mesh = {};
  alone.fsdp.strategy = shard::Strategy::kFullShard;
  train(1, alone);
  testing::expect_equal_checkpoints(folder_ / "alone/step-00000006", folder_ / "out/step-00000006");
  EXPECT_EQ(testing::values_of(folder_ / "out/metrics.jsonl", "skipped_steps"),
            (std::vector<double>{1, 2, 3, 3, 3, 3}));
}

TEST_F(ReplicasTest, AStepThatNobodyHasFinishedIsDoneAgain) {
  take_part(epoch(1, {0, 1}), {.after_step = 3, .loses_answer = 0});
  // As if those that finished it had been lost before they could say so.
  kept_[0].begin(epoch(2, {0}, 2));
  EXPECT_EQ(kept_[0].step(), 2);
  EXPECT_FALSE(kept_[0].can_finish_step());
}

TEST_F(ReplicasTest, AnEpochWithoutAStepForgetsTheState) {
  take_part(epoch(1, {0, 1}), {.after_step = 3});
  take_part(epoch(2, {0, 1}), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, AStepWhoseSaveWasInterruptedIsSavedByTheNextEpoch) {
  config_.checkpoint.interval_steps = 3;
  take_part(epoch(1, {0, 1}), {.after_step = 3});
  std::filesystem::remove_all(folder_ / "out/step-00000003");
  take_part(epoch(2, {0, 1}, 3), {.after_step = 4});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/step-00000003"));
  take_part(epoch(3, {0}, 4), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, AValidationThatWasNotWrittenIsWrittenByTheNextEpoch) {
  take_part(epoch(1, {0, 1}), {.after_step = 2});
  const std::filesystem::path metrics = folder_ / "out/metrics.jsonl";
  const std::string lines = util::read_file(metrics);
  std::filesystem::resize_file(metrics, lines.rfind('\n', lines.find("\"validation_loss\"")) + 1);
  take_part(epoch(2, {1}, 2), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, ABestCheckpointWhoseSaveWasInterruptedIsSavedByTheNextEpoch) {
  config_.checkpoint.keep_best = true;
  take_part(epoch(1, {0, 1}), {.after_step = 2});
  ASSERT_EQ(checkpoint::best_step(folder_ / "out"), 2);
  std::filesystem::remove_all(folder_ / "out");
  take_part(epoch(2, {0, 1}, 2), {.after_step = 3});
  EXPECT_EQ(checkpoint::best_step(folder_ / "out"), 2);
}

TEST_F(ReplicasTest, OthersGoOnWithinTheStep) {
  lose_one_in_round(2, 12);
  take_part(epoch(3, {1, 2}, 2), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, OthersGoOnWithinTheStepWithARoundThatNotAllHaveAPartIn) {
  lose_one_in_round(3, 18);
  take_part(epoch(3, {1, 2}, 2), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, OthersGoOnWithinTheStepTwice) {
  lose_one_in_round(1, 6);
  take_part(epoch(3, {1, 2}, 2), {.loses_answer = 0, .unit = "losses of samples", .nth = 2});
  EXPECT_EQ(kept_[4].begun_leaves(), 14);
  take_part(epoch(4, {2}, 2), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, AllGoOnFromWhatEachHasOfTheStep) {
  lose_one_in_round(3, 18);
  EXPECT_EQ(kept_[0].begun_leaves(), 12);
  take_part(epoch(3, {0, 1, 2}, 2), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, AStepIsDoneFromItsBeginningWithOneThatHasNothingOfIt) {
  lose_one_in_round(2, 12);
  launch::Epoch both = epoch(3, {0, 1}, 2);
  kept_[0] = {};
  kept_[1] = {};
  both.sources = {2, 3};
  both.behind = {0, 1};
  take_part(both, {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, RanksGoOnTogetherWhenOnlySomeHaveComeThroughAValidation) {
  take_part(epoch(1, {0, 1}), {.after_step = 2, .loses_answer = 1, .unit = "validation loss", .nth = 1});
  for (const KeptState& kept : std::span(kept_).first(kReplicas * kSize)) EXPECT_EQ(kept.step(), 2);
  take_part(epoch(2, {0}, 2), {});
  expect_undisturbed_result();
}

TEST_F(ReplicasTest, RefusesByNameWhatReplicasCannotDo) {
  EXPECT_EQ(obstacle(), "");
  const config::Config possible = config_;
  const auto refused = [&](auto&& change) {
    config_ = possible;
    change();
    return obstacle();
  };
  EXPECT_THAT(refused([&] { config_.training.reproducible = config::Reproducible::kRun; }),
              HasSubstr("training.reproducible must be \"world_size\", or training.local_steps above 0, with "
                        "fsdp-launch --replica-size 2"));
  EXPECT_EQ(refused([&] {
              config_.training.reproducible = config::Reproducible::kRun;
              config_.training.local_steps = 4;
            }),
            "");
  EXPECT_THAT(refused([&] {
                config_.training.reproducible = config::Reproducible::kRun;
                config_.training.local_steps = 4;
                config_.outer_optimizer.fragment_delay = 1;
              }),
              HasSubstr("outer_optimizer.fragments must be 1, and fragment_delay 0, with fsdp-launch"));
  EXPECT_THAT(refused([&] { config_.mesh.dcn = 2; }),
              HasSubstr("mesh.dcn must be -1 and mesh.data 2 with fsdp-launch --replica-size 2"));
  EXPECT_THAT(refused([&] { config_.fsdp.strategy = shard::Strategy::kFullShard; }),
              HasSubstr("fsdp.strategy must be hybrid_shard, hybrid_shard_zero2 or no_shard"));
  EXPECT_THAT(refused([&] { config_.training.global_batch_size = 0; }),
              HasSubstr("training.global_batch_size must be given"));
  EXPECT_THAT(refused([&] { config_.training.global_batch_size = 4; }),
              HasSubstr("with 2 of the 2 replicas of fsdp-launch --replica-size 2 (--min-replicas 1), "
                        "training.global_batch_size must be a multiple of"));
  EXPECT_THAT(refused([&] { config_.logging.trace_communication = true; }),
              HasSubstr("logging.trace_communication must be false"));
}

}  // namespace
}  // namespace fsdp::train
