#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/threads/thread_communicator.h"
#include "run/train/trainer.h"
#include "support/sharded_run.h"
#include "support/temporary_folder.h"
#include "support/tiny_config.h"

namespace fsdp::train {

/// Whole runs on threads as ranks, in a folder of their own.
class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override { util::set_log_level(util::LogLevel::kOff); }
  void TearDown() override { util::set_log_level(util::LogLevel::kInfo); }

  RunSummary train(int world_size, const config::Config& config) {
    return train_until(world_size, config, /*asked=*/0);
  }

  /// The last rank is told to stop when it asks for the `asked`-th time; 0: never.
  RunSummary train_until(int world_size, const config::Config& config, int asked) {
    RunSummary summary;
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      const bool is_told = communicator.rank() == world_size - 1;
      int count = 0;
      Trainer trainer(config, testing::borrowed(communicator), {},
                      {.stop_requested = [&] { return is_told && ++count == asked; }});
      RunSummary mine = trainer.run();
      if (communicator.rank() == 0) summary = mine;
    });
    return summary;
  }

  ErrorKind failure(int world_size, const config::Config& config, const std::string& part) {
    try {
      train(world_size, config);
      ADD_FAILURE() << "expected an error with \"" << part << '"';
    } catch (const util::Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      return error.kind();
    }
    return ErrorKind::kUnexpected;
  }

  /// Of runs on other numbers of ranks, whose sums differ in the order of their terms.
  static void expect_near(const std::vector<double>& losses, const std::vector<double>& whole) {
    ASSERT_EQ(losses.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(losses[i], whole[i], 1e-5 * whole[i]) << i;
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

}  // namespace fsdp::train
