#include "state/manifest/manifest.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

double training_seconds_of(const std::filesystem::path& checkpoint) {
  return checkpoint::read_manifest(checkpoint).training.at("training_seconds").get<double>();
}

constexpr double kInstant = 1e-12;

TEST_F(TrainerTest, ARunThatIsOutOfTimeEndsItsStepAndSaves) {
  config_.training.steps = 6;
  config_.checkpoint.interval_steps = 100;
  config_.checkpoint.save_at_end = false;
  config_.training.stop_after_hours = kInstant;
  const RunSummary summary = train(2, config_);
  EXPECT_EQ(summary.step, 1);
  EXPECT_TRUE(summary.ended_early);
  EXPECT_FALSE(summary.stopped) << "the exit code is that of a run that is over";
  EXPECT_EQ(summary.last_checkpoint.filename(), "step-00000001");
}

TEST_F(TrainerTest, TimeOfEarlierStartsCounts) {
  config_.training.steps = 2;
  train(2, config_);
  const double spent = training_seconds_of(folder_ / "out/step-00000002");
  ASSERT_GT(spent, 0);
  config_.training.steps = 4;
  config_.training.stop_after_hours = spent / 2 / 3600;
  const RunSummary over = train(2, config_);
  EXPECT_EQ(over.step, 2) << "no step is trained when the time was over before";
  EXPECT_TRUE(over.ended_early);
  config_.training.stop_after_hours = spent / 3600 + 1;
  const RunSummary whole = train(2, config_);
  EXPECT_EQ(whole.step, 4);
  EXPECT_FALSE(whole.ended_early);
  EXPECT_GT(training_seconds_of(folder_ / "out/step-00000004"), spent);
}

TEST_F(TrainerTest, ARunThatWasOutOfTimeGoesOnToTheSameLosses) {
  config_.training.steps = 4;
  const auto losses = [&](const char* folder) {
    return testing::values_of(folder_ / folder / "metrics.jsonl", "loss");
  };
  config_.run.output_dir = folder_ / "whole";
  train(2, config_);
  config_.run.output_dir = folder_ / "parts";
  config_.training.stop_after_hours = kInstant;
  train(2, config_);
  config_.training.stop_after_hours = 0;
  train(2, config_);
  EXPECT_EQ(losses("parts"), losses("whole"));
}

TEST_F(TrainerTest, AStopSignalOutweighsTheLimitOfTime) {
  config_.training.steps = 6;
  config_.training.stop_after_hours = kInstant;
  RunSummary summary;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const bool is_told = communicator.rank() == 1;
    Trainer trainer(config_, testing::borrowed(communicator), {},
                    {.stop_requested = [&] { return is_told; }});
    const RunSummary mine = trainer.run();
    if (communicator.rank() == 0) summary = mine;
  });
  EXPECT_TRUE(summary.stopped) << "the exit code is that of a run that was told to stop";
  EXPECT_FALSE(summary.ended_early);
}

TEST_F(TrainerTest, ARunWithTimeLeftTrainsAllSteps) {
  config_.training.steps = 3;
  config_.training.stop_after_hours = 1;
  const RunSummary summary = train(2, config_);
  EXPECT_EQ(summary.step, 3);
  EXPECT_FALSE(summary.ended_early);
}

}  // namespace
}  // namespace fsdp::train
