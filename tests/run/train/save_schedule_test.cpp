#include "run/train/save_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "comm/threads/thread_communicator.h"
#include "run/train/trainer.h"
#include "state/manifest/folders.h"
#include "support/forwarding_communicator.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::ElementsAre;

/// Counts the collectives of a rank.
class CountedCommunicator final : public testing::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  int count = 0;

 private:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    ++count;
    return call.issue(inner(), site);
  }
};

struct MadeRun {
  std::vector<int64_t> saves;  ///< steps after which the run saves
  int collectives = 0;
};

/// A run whose steps take step_seconds(step) and whose saves end within `save_steps` more steps. The clock of
/// rank 1 is wrong.
MadeRun made_run(const checkpoint::CheckpointOptions& options, int64_t steps,
                 const std::function<double(int64_t)>& step_seconds, int64_t save_steps = 0) {
  std::vector<MadeRun> runs(2);
  comm::run_ranks_as_threads(2, [&](comm::Communicator& ranks) {
    CountedCommunicator communicator(ranks);
    MadeRun& run = runs[static_cast<size_t>(ranks.rank())];
    SaveSchedule schedule(options, communicator);
    double now = 0;
    const double wrong = ranks.rank() == 1 ? 1000 : 0;
    schedule.begin(0, now + wrong, 0);
    int64_t saving_until = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      now += step_seconds(step);
      const bool may_be_due = schedule.may_be_due(step);
      if (!schedule.is_due(step, now + wrong, step < saving_until)) continue;
      EXPECT_TRUE(may_be_due) << step << ": the step reads its outcome only if it knows of the save";
      schedule.note_save(now + wrong);
      run.saves.push_back(step);
      saving_until = step + save_steps;
    }
    run.collectives = communicator.count;
  });
  EXPECT_EQ(runs[0].saves, runs[1].saves) << "the ranks agree";
  return runs[0];
}

TEST(SaveSchedule, SavesAfterMultiplesOfItsSteps) {
  const MadeRun run = made_run({.interval_steps = 4}, 13, [](int64_t) { return 1.0; });
  EXPECT_THAT(run.saves, ElementsAre(4, 8, 12));
  EXPECT_EQ(run.collectives, 0);
  EXPECT_TRUE(made_run({.interval_steps = 0}, 9, [](int64_t) { return 1.0; }).saves.empty());
}

TEST(SaveSchedule, SavesByTheClockOfTheFirstRankWithFewCollectives) {
  const MadeRun run = made_run({.interval_minutes = 10}, 1900, [](int64_t) { return 1.0; });
  EXPECT_THAT(run.saves, ElementsAre(600, 1200, 1800));
  EXPECT_LE(run.collectives, 50) << "about fifteen an interval of 600 steps";
}

TEST(SaveSchedule, IsNotLateWhenStepsBecomeSlower) {
  const MadeRun run =
      made_run({.interval_minutes = 10}, 700, [](int64_t step) { return step <= 100 ? 1.0 : 2.0; });
  EXPECT_THAT(run.saves, ElementsAre(350, 650)) << "the first save is at 600 seconds, the second 600 later";
}

TEST(SaveSchedule, SavesEachStepThatIsLongerThanTheInterval) {
  EXPECT_THAT(made_run({.interval_minutes = 0.5}, 3, [](int64_t) { return 40.0; }).saves,
              ElementsAre(1, 2, 3));
}

TEST(SaveSchedule, LetsASaveEndBeforeTheNextByTime) {
  const MadeRun run = made_run(
      {.interval_minutes = 1}, 40, [](int64_t) { return 10.0; }, /*save_steps=*/9);
  EXPECT_THAT(run.saves, ElementsAre(6, 16, 26, 36)) << "the step after the end of a save may be the next";
}

TEST(SaveSchedule, BeginsASaveWhenThePreviousHasEnded) {
  checkpoint::CheckpointOptions options{.schedule = "continuous", .asynchronous = true};
  const MadeRun run = made_run(
      options, 10, [](int64_t) { return 10.0; }, /*save_steps=*/3);
  EXPECT_THAT(run.saves, ElementsAre(1, 5, 9));
  EXPECT_EQ(run.collectives, 0);
}

TEST(SaveSchedule, SavesStepsThatAreToBeKeptWhateverTheTime) {
  const MadeRun run = made_run({.interval_minutes = 10, .keep_last = 2, .keep_every = 500}, 1300,
                               [](int64_t) { return 1.0; });
  EXPECT_THAT(run.saves, ElementsAre(500, 1000)) << "each is less than 600 seconds after the previous save";
  EXPECT_THAT(
      made_run({.interval_minutes = 10, .keep_last = 2, .keep_every = 700}, 1450, [](int64_t) { return 1.0; })
          .saves,
      ElementsAre(600, 700, 1300, 1400));
}

std::vector<int64_t> saved_steps(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& found : checkpoint::find_checkpoints(folder).complete) steps.push_back(found.step);
  return steps;
}

TEST_F(TrainerTest, SavesByTime) {
  config_.training.steps = 6;
  config_.checkpoint.keep_last = 0;
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.interval_minutes = 1e-9;
  train(2, config_);
  EXPECT_THAT(saved_steps(folder_ / "out"), ElementsAre(1, 2, 3, 4, 5, 6));
  config_.run.output_dir = folder_ / "hour";
  config_.checkpoint.interval_minutes = 60;
  train(2, config_);
  EXPECT_THAT(saved_steps(folder_ / "hour"), ElementsAre(6)) << "interval_steps does not count, the end does";
}

TEST_F(TrainerTest, ARunThatIsStoppedSavesIfItSavesByTime) {
  config_.checkpoint.save_at_end = false;
  config_.checkpoint.interval_minutes = 60;
  EXPECT_EQ(train_until(2, config_, /*asked=*/3).last_checkpoint.filename(), "step-00000003");
}

TEST_F(TrainerTest, TimeBeforeARestartDoesNotMakeASaveDue) {
  config_.training.steps = 2;
  config_.checkpoint.interval_minutes = 60;
  train(2, config_);
  config_.training.steps = 4;
  train(2, config_);
  EXPECT_THAT(saved_steps(folder_ / "out"), ElementsAre(2, 4));
}

TEST_F(TrainerTest, SavesContinuouslyBesideTraining) {
  config_.training.steps = 1'000'000;
  config_.checkpoint.keep_last = 0;
  config_.checkpoint.schedule = "continuous";
  config_.checkpoint.asynchronous = true;
  config_.data.validation.clear();
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Trainer(config_, testing::borrowed(communicator), {},
            {.stop_requested = [&] { return saved_steps(folder_ / "out").size() >= 4; }})
        .run();
  });
  const std::vector<int64_t> steps = saved_steps(folder_ / "out");
  ASSERT_GE(steps.size(), 4u);
  EXPECT_EQ(steps.front(), 1);
  for (size_t i = 1; i < 4; ++i) EXPECT_GE(steps[i] - steps[i - 1], 3) << "a save has parts in several steps";
}

}  // namespace
}  // namespace fsdp::train
