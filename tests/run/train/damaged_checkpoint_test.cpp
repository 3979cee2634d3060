// What a run does about checkpoints that are not what was written any more.

#include <gmock/gmock.h>

#include "support/checkpoint_fixtures.h"
#include "support/checkpointer_fixture.h"

namespace fsdp::train {
namespace {

using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class DamagedCheckpoint : public CheckpointerTest {
 protected:
  DamagedCheckpoint() { config_.checkpoint.keep_last = 0; }

  fs::path step(int number) const { return folder_ / "out" / ("step-0000000" + std::to_string(number)); }
  static fs::path aside(const fs::path& folder) { return folder.string() + ".damaged-1"; }

  /// Leaves checkpoints of steps 2, 4, ..., `last`.
  void save_until(int last) {
    on_ranks(2, config_, [&](Rank& rank) {
      while (rank.position.step < last) {
        rank.train(2);
        rank.checkpointer.save(rank.position);
        rank.checkpointer.finish();
      }
    });
    warnings_.clear();
  }

  /// The step that a run of two ranks begins at.
  int64_t resumed_step() {
    int64_t step = -1;
    on_ranks(2, config_, [&](Rank& rank) {
      if (rank.number == 0) step = rank.position.step;
      rank.train(1);
    });
    return step;
  }

  /// Of two ranks that begin.
  std::pair<ErrorKind, std::string> refusal() {
    return error_of([&] { on_ranks(2, config_, [](Rank&) {}); });
  }
};

TEST_F(DamagedCheckpoint, AutoFallsBackToTheNewestIntactOneAndSetsTheOthersAside) {
  save_until(8);
  flip_byte(step(8) / "rank-00001.h5", 4000);  // seen by the rank that reads it
  flip_byte(step(6) / "manifest.json", 100);   // seen by the choice
  fs::resize_file(step(4) / "rank-00000.h5", 1000);
  EXPECT_EQ(resumed_step(), 2);
  for (int damaged : {4, 6, 8}) {
    EXPECT_FALSE(fs::exists(step(damaged)));
    EXPECT_TRUE(fs::exists(aside(step(damaged)) / "rank-00001.h5"));
    EXPECT_THAT(warnings_, Contains(HasSubstr(aside(step(damaged)).string())));
  }
  EXPECT_THAT(warnings_, Contains(AllOf(HasSubstr("rank-00001.h5 is damaged: its hash is"),
                                        HasSubstr(aside(step(8)).string()))));
  EXPECT_THAT(warnings_, Contains(HasSubstr("1000 bytes, but the manifest gives")));
}

TEST_F(DamagedCheckpoint, TheLastOneStaysWhereItIsAndIsAnError) {
  save_until(4);
  flip_byte(step(4) / "rank-00000.h5", 4000);
  flip_byte(step(2) / "rank-00000.h5", 4000);
  for (int restart = 0; restart < 2; ++restart) {
    auto [kind, text] = refusal();
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, AllOf(HasSubstr("is damaged"), HasSubstr("no older checkpoint is left")));
    EXPECT_TRUE(fs::exists(step(2)));
  }
  flip_byte(step(2) / "manifest.json", 100);
  EXPECT_THAT(refusal().second, HasSubstr("is intact"));
  EXPECT_TRUE(fs::exists(step(2)));
}

TEST_F(DamagedCheckpoint, LatestAndAPathStayStrict) {
  save_until(4);
  flip_byte(step(4) / "rank-00001.h5", 4000);
  for (const std::string& resume : {std::string("latest"), step(4).string()}) {
    config_.checkpoint.resume = resume;
    EXPECT_EQ(refusal().first, ErrorKind::kCheckpoint);
    EXPECT_TRUE(fs::exists(step(4)));
  }
}

TEST_F(DamagedCheckpoint, NothingIsRenamedWithoutDamage) {
  save_until(4);
  const fs::path shard = step(4) / "rank-00001.h5";
  config::Config other = config_;
  other.optimizer.name = "sgd";
  EXPECT_EQ(error_of([&] { on_ranks(2, other, [](Rank&) {}); }).first, ErrorKind::kCheckpoint);
  EXPECT_TRUE(fs::exists(step(4)));

  // The system refuses to open it: as without permission, but for the superuser too.
  fs::rename(shard, folder_ / "shard");
  fs::create_symlink("rank-00001.h5", shard);
  EXPECT_EQ(refusal().first, ErrorKind::kIo);
  EXPECT_TRUE(fs::exists(step(4)));
  fs::rename(folder_ / "shard", shard);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(DamagedCheckpoint, IsFoundWhenItIsReadBackAndSavedAgain) {
  config_.checkpoint.verify_saved = "background";
  config_.checkpoint.keep_last = 1;
  for (const bool asynchronous : {false, true}) {
    config_.checkpoint.asynchronous = asynchronous;
    fs::remove_all(folder_ / "out");
    warnings_.clear();
    save_until(2);
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Rank rank(config_, communicator);
      bool once = communicator.rank() == 0;
      // It is called when the checkpoint is complete, before rank 0 reads its own file back.
      const auto damage = [&] {
        if (once && fs::exists(step(4) / "manifest.json")) {
          flip_byte(step(4) / "rank-00000.h5", 4000);
          once = false;
        }
      };
      Checkpointer checkpointer(rank.config, {*rank.parts.engine, *rank.parts.optimizer, nullptr},
                                communicator, {.before_speaking = damage, .in_the_middle = {}});
      rank.position = checkpointer.restore();
      rank.train(2);
      checkpointer.save(rank.position);
      checkpointer.finish();
      EXPECT_TRUE(checkpointer.wants_save());
      EXPECT_NE(checkpointer.saved_step(), 4);
      EXPECT_THROW(checkpointer.require_last_save(), util::Error);
      EXPECT_TRUE(fs::exists(step(2))) << "an older one stays until a newer one was verified";
      rank.train(2);
      checkpointer.save(rank.position);
      checkpointer.finish();
      EXPECT_FALSE(checkpointer.wants_save());
      checkpointer.require_last_save();
      communicator.barrier({.unit = "test"});
    });
    EXPECT_TRUE(fs::exists(aside(step(4))));
    EXPECT_FALSE(fs::exists(step(2)));
    EXPECT_THAT(warnings_, Contains(AllOf(HasSubstr("step 4 was damaged when it was read back"),
                                          HasSubstr(aside(step(4)).string()))));
    EXPECT_EQ(resumed_step(), 6);
  }
}

}  // namespace
}  // namespace fsdp::train
