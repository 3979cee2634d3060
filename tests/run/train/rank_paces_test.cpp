// Which rank a run names as slow: delays are injected, long beside the steps, so that a busy machine does not
// matter.

#include "run/train/rank_paces.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "base/util/system.h"
#include "support/connected_ranks.h"
#include "support/log_lines.h"
#include "support/trainer_fixture.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SlowRankOver : public TrainerTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    util::set_log_level(util::LogLevel::kInfo);
    config_.data.validation = {};
    config_.checkpoint.save_at_end = false;
    config_.training.steps = 6;
    config_.training.slow_rank_factor = 2;
    config_.training.slow_rank_steps = 3;
  }
  void TearDown() override {
    unsetenv("FSDP_INJECT_FAULT");
    TrainerTest::TearDown();
  }

  std::string log_of_run(const char* fault) {
    setenv("FSDP_INJECT_FAULT", fault, 1);
    return testing::log_lines([&] {
      testing::run_ranks_over(GetParam(), {.world_size = 3}, [&](std::shared_ptr<comm::Communicator>& ranks) {
        Trainer(config_, ranks, {}).run();
        ranks->barrier({.unit = "end"});
      });
    });
  }
  std::vector<nlohmann::json> lines_with(const char* key) const {
    return testing::metrics_with(folder_ / "out/metrics.jsonl", key);
  }

  const std::string host_ = util::host_name();
};

TEST_P(SlowRankOver, TheDelayedRankIsNamedAndThoseThatWaitForItAreNot) {
  // The collective: what its queue does before its collectives is a rank's own, too.
  for (const char* place : {"step", "forward", "collective"}) {
    SCOPED_TRACE(place);
    const std::string log = log_of_run(concat("rank=1,step=2-6,at=", place, ",do=sleep:0.3").c_str());
    EXPECT_THAT(log, HasSubstr("rank 1 on " + host_ + " is slow: since step 2 it has needed "));
    for (const char* other : {"rank 0 on ", "rank 2 on ", "no longer slow"}) {
      EXPECT_THAT(log, Not(HasSubstr(other)));
    }
    const auto compared = lines_with("slowest_rank"), named = lines_with("slow_rank");
    ASSERT_EQ(compared.size(), 5u) << "the first step is not compared";
    for (const auto& line : compared) EXPECT_EQ(line["slowest_rank"], 1) << line;
    ASSERT_EQ(named.size(), 3u);
    for (const auto& line : named) {
      EXPECT_EQ(line["slow_rank"], 1) << line;
      EXPECT_EQ(line["slow_rank_host"], host_);
      EXPECT_GE(line["step"], 4) << line;
    }
  }
}

TEST_P(SlowRankOver, ItsRecoveryIsSaid) {
  config_.training.steps = 40;  // of milliseconds: a busy machine may make any rank slow in some of them
  config_.training.slow_rank_factor = 4;
  const std::string log = log_of_run("rank=2,step=2-5,at=step,do=sleep:0.5");
  EXPECT_THAT(log, HasSubstr("rank 2 on " + host_ + " is slow: since step 2 "));
  EXPECT_THAT(log, HasSubstr("rank 2 on " + host_ + " is no longer slow: since step "));
}

TEST_P(SlowRankOver, NothingIsComparedWithoutAFactor) {
  config_.training.slow_rank_factor = 0;
  EXPECT_THAT(log_of_run("rank=1,step=2-6,at=forward,do=sleep:0.05"), Not(HasSubstr("is slow")));
  EXPECT_TRUE(lines_with("slowest_rank").empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, SlowRankOver, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

data::Batch batch_of(int64_t rows, int64_t tokens) {
  data::Batch batch;
  batch.inputs = at::zeros({rows, tokens}, at::kLong);
  return batch;
}

TEST(BatchFlops, AreThoseOfTheTokensWhereAllRowsHaveOneLength) {
  config::Config config;
  EXPECT_DOUBLE_EQ(BatchFlops(config, 1000).of(batch_of(2, 8)), 16'000);
  EXPECT_DOUBLE_EQ(BatchFlops(config, 0).of(batch_of(2, 8)), 16) << "not known for a token";
}

TEST(BatchFlops, GrowWithTheLengthOfRowsAndDocuments) {
  config::Config config;
  config.model = testing::tiny_options();
  config.data.sequence_length = 8;
  const auto a_token = [&](int64_t length) { return plan::flops_a_token(config.model, length).model; };
  config.data.max_tokens = 64;
  const BatchFlops by_tokens(config, a_token(8));
  EXPECT_NEAR(by_tokens.of(batch_of(2, 8)), 16 * a_token(8), 1e-6);
  EXPECT_NEAR(by_tokens.of(batch_of(4, 4)), 16 * a_token(4), 1e-6);
  EXPECT_LT(a_token(4), a_token(8));

  config.data.max_tokens = 0;
  config.data.documents = data::DocumentTreatment::kMask;
  const BatchFlops by_documents(config, a_token(8));
  data::Batch batch = batch_of(2, 8);
  batch.document_starts = std::make_shared<const std::vector<std::vector<int64_t>>>(
      std::vector<std::vector<int64_t>>{{0, 4}, {0}});
  EXPECT_NEAR(by_documents.of(batch), 8 * a_token(4) + 8 * a_token(8), 1e-6);
}

}  // namespace
}  // namespace fsdp::train
