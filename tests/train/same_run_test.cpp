#include "train/same_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "comm/thread_communicator.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

class SameRun : public ::testing::Test {
 protected:
  /// What every rank is told when `change` is made on rank 1 of three.
  std::string refusal(const std::function<void(config::Config&)>& change) {
    std::vector<std::string> texts(3, "no error");
    comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
      config::Config config = config_;
      if (communicator.rank() == 1) change(config);
      try {
        require_same_run(config, communicator);
      } catch (const comm::AgreedError& error) {
        EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
        texts[static_cast<size_t>(communicator.rank())] = error.what();
      }
    });
    EXPECT_EQ(texts[1], texts[0]);
    EXPECT_EQ(texts[2], texts[0]);
    return texts[0];
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(SameRun, IsWhatAllRanksMustBeAboutToRun) {
  EXPECT_EQ(refusal([](auto&) {}), "no error");
}

TEST_F(SameRun, ADifferentKeyIsNamedWithItsRank) {
  std::string text = refusal([](auto& config) { config.optimizer.lr = 0.5; });
  EXPECT_THAT(text, HasSubstr("rank 1"));
  EXPECT_THAT(text, HasSubstr("optimizer.lr: "));
  EXPECT_THAT(text, HasSubstr("-> 0.5"));
}

TEST_F(SameRun, TheMeshIsPartOfIt) {
  EXPECT_THAT(refusal([](auto& config) { config.mesh.dcn = 3; }), HasSubstr("mesh.dcn: 1 -> 3"));
}

TEST_F(SameRun, DataMayLieElsewhereButMustBeTheSame) {
  std::filesystem::copy(folder_ / "train.bin", folder_ / "copy.bin");
  EXPECT_EQ(refusal([&](auto& config) { config.data.train = {folder_ / "copy.bin"}; }), "no error");
  testing::write_token_file(folder_ / "other.bin", 1000, config_.model.vocab_size);
  EXPECT_THAT(refusal([&](auto& config) { config.data.train = {folder_ / "other.bin"}; }),
              HasSubstr("files of data.train"));
}

}  // namespace
}  // namespace fsdp::train
