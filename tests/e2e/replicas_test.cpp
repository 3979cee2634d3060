// fsdp-train under fsdp-launch --replica-size: processes die, are replaced, and the run ends with the
// weights, the optimizer state and the metrics of one process that nothing disturbed.
// tests/run/replicas/replicas_test.cpp has the parts.

#include <gmock/gmock.h>

#include <memory>

#include "base/util/error.h"
#include "e2e/programs.h"
#include "support/checkpoint_contents.h"
#include "support/free_port.h"
#include "support/network_hosts.h"
#include "support/source_folder.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;

class Replicas : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 12 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  Words training(const std::string& output, const Words& overrides) const {
    Words words{"--",
                program("fsdp-train"),
                folder_ / "config.toml",
                "run.output_dir=" + (folder_ / output).string(),
                "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
                "data.validation=[\"" + (folder_ / "train.bin").string() + "\"]",
                "evaluation.interval_steps=5",
                "evaluation.max_samples=24",
                "data.micro_batch_size=1",
                "training.global_batch_size=12",
                "training.gradient_accumulation_steps=0",
                "training.reproducible=world_size",
                "training.steps=12",
                "checkpoint.interval_steps=4",
                "checkpoint.keep_last=0",
                "comm.timeout_seconds=4",
                "logging.peak_tflops=1"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }

  /// `size` processes a replica.
  ProgramResult run(int replicas, int size, const std::string& fault, const Words& options = {},
                    const Words& overrides = {}) const {
    Words words{program("fsdp-launch"),
                "--nproc-per-node",
                std::to_string(replicas * size),
                "--replica-size",
                std::to_string(size),
                "--max-restarts",
                options.empty() ? "1" : "0",
                "--stop-timeout",
                "3"};
    words.insert(words.end(), options.begin(), options.end());
    Words all{"fsdp.strategy=hybrid_shard", "mesh.dcn=-1", "mesh.data=" + std::to_string(size)};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Words train = training("out", all);
    words.insert(words.end(), train.begin(), train.end());
    return testing::run(
        words, {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", fault}}, .timeout_seconds = 120});
  }

  /// A launcher of two with a replica each, whose first rank is slow.
  std::unique_ptr<testing::RunningProgram> start_node(int node, const Words& options,
                                                      const testing::NetworkHosts* hosts = nullptr) const {
    Words words{program("fsdp-launch"),
                "--nnodes",
                "2",
                "--node-rank",
                std::to_string(node),
                "--monitor-interval",
                "0.1",
                "--shutdown-timeout",
                "2",
                "--nproc-per-node",
                "2",
                "--replica-size",
                "2",
                "--max-restarts",
                "2"};
    words.insert(words.end(), options.begin(), options.end());
    const Words train = training("out", {"fsdp.strategy=hybrid_shard", "mesh.dcn=-1", "mesh.data=2"});
    words.insert(words.end(), train.begin(), train.end());
    const std::string slow = "rank=0,step=1-12,at=step,do=sleep:0.5";
    return std::make_unique<testing::RunningProgram>(
        hosts == nullptr ? words : hosts->on(node, words),
        testing::RunOptions{.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", slow}},
                            .timeout_seconds = 60});
  }

  void expect_undisturbed_result(const ProgramResult& result) const {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    Words words{program("fsdp-launch"), "--nproc-per-node", "1"};
    const Words train = training("alone", {});
    words.insert(words.end(), train.begin(), train.end());
    const ProgramResult alone = testing::run(words, {.env = {{"OMP_NUM_THREADS", "1"}}});
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    for (const char* step : {"step-00000004", "step-00000008", "step-00000012"}) {
      testing::expect_equal_checkpoints(folder_ / "alone" / step, folder_ / "out" / step);
    }
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "validation_loss"}) {
      EXPECT_EQ(testing::values_of(folder_ / "out/metrics.jsonl", key),
                testing::values_of(folder_ / "alone/metrics.jsonl", key))
          << key;
    }
  }

  testing::TemporaryFolder folder_;
};

struct Fault {
  const char* name;
  const char* text;
};

class ReplicasAfter : public Replicas, public ::testing::WithParamInterface<Fault> {};

TEST_P(ReplicasAfter, TheSurvivorsGoOnToTheUndisturbedResult) {
  const ProgramResult result = run(2, 2, GetParam().text);
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, AllOf(HasSubstr("is lost"), HasSubstr("of 2 continue after step "),
                                Not(HasSubstr("from the newest checkpoint"))));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, ReplicasAfter,
    ::testing::Values(Fault{"KilledBetweenSteps", "rank=3,step=3,at=step,do=kill"},
                      Fault{"KilledInForward", "rank=2,step=5,at=forward,do=kill"},
                      Fault{"KilledInACollective", "rank=1,step=6,at=collective,do=kill"},
                      Fault{"TheFirstRankIsKilledInForward", "rank=0,step=4,at=forward,do=kill"},
                      Fault{"TheFirstRankIsKilledInASave", "rank=0,step=4,at=write,do=kill"},
                      // Once the others have the validation too.
                      Fault{"TheFirstRankIsKilledBeforeItWritesAValidation",
                            "rank=0,step=5,at=validation,do=sleep:0.5;rank=0,step=5,at=validation,do=kill"},
                      Fault{"KilledInTheFirstStep", "rank=0,step=1,at=forward,do=kill"},
                      Fault{"KilledInTheLastSave", "rank=3,step=12,at=write,do=kill"},
                      Fault{"Stopped", "rank=3,step=3,at=forward,do=stop"}),
    [](const auto& info) { return info.param.name; });

TEST_F(Replicas, GoOnWithoutOneThatIsNotStartedAgain) {
  const ProgramResult result =
      run(3, 1, "rank=1,step=3,at=forward,do=kill", {"--min-replicas", "1"}, {"fsdp.strategy=no_shard"});
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, HasSubstr("replicas 0, 2 of 3 continue after step 2"));
}

TEST_F(Replicas, GoOnOverGloo) {
  const ProgramResult result = run(2, 2, "rank=2,step=5,at=collective,do=kill", {}, {"comm.backend=gloo"});
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, Not(HasSubstr("from the newest checkpoint")));
}

TEST_F(Replicas, GoOnWhenTheOneThatSendsTheStateIsKilledWhileItDoes) {
  const ProgramResult result = run(3, 1,
                                   "rank=2,step=3,at=step,do=kill;rank=1,step=3-12,at=step,do=sleep:0.5;"
                                   "rank=0,step=2-11,at=transfer,do=kill",
                                   {}, {"fsdp.strategy=no_shard"});
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("replica 0 (rank 0) is lost"), HasSubstr("replica 2 (rank 2) is lost"),
                    Not(HasSubstr("from the newest checkpoint"))));
}

TEST_F(Replicas, GoOnFromTheNewestCheckpointWhenThatWasTheLastWithTheState) {
  const ProgramResult result = run(2, 2,
                                   "rank=3,step=6,at=step,do=kill;rank=0,step=6-12,at=step,do=sleep:0.5;"
                                   "rank=1,step=5-11,at=transfer,do=kill");
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, HasSubstr("replicas 0, 1 of 2 continue from the newest checkpoint"));
}

TEST_F(Replicas, EndWithANameAndAWholeCheckpointWhenAllCopiesOfAPartOfTheStateAreLost) {
  const ProgramResult result =
      run(2, 2, "rank=1,step=6,at=forward,do=kill;rank=3,step=6,at=forward,do=kill", {"--min-replicas", "1"});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, AllOf(HasSubstr("replica 0 (ranks 0 to 1) is lost: rank 1 (pid "),
                                HasSubstr("replica 1 (ranks 2 to 3) is lost: rank 3 (pid "),
                                HasSubstr("was ended by SIGKILL")));
  expect_undisturbed_result(run(2, 2, "", {}, {"checkpoint.resume=auto"}));
}

TEST_F(Replicas, ALostNodeIsReplacedWhileTheOtherGoesOn) {
  const std::string port = std::to_string(testing::free_port());
  const auto start = [&](int node) { return start_node(node, {"--master-port", port}); };
  const auto first = start(0), second = start(1);
  ASSERT_TRUE(first->wait_for("step 2/12")) << first->err();
  second->send(SIGKILL);
  ASSERT_TRUE(first->wait_for("replica 0 of 2 continue after step")) << first->err();
  const auto replacement = start(1);
  const ProgramResult result = first->wait();
  EXPECT_EQ(replacement->wait().exit_code, 0) << replacement->err();
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, HasSubstr("replicas 0, 1 of 2 continue after step"));
}

TEST_F(Replicas, EndWithTheLauncherThatDecidesAndTheNewestCheckpointIsWhole) {
  const std::string port = std::to_string(testing::free_port());
  const auto first = start_node(0, {"--master-port", port}), second = start_node(1, {"--master-port", port});
  ASSERT_TRUE(first->wait_for("step 6/12")) << first->err();
  first->send(SIGKILL);
  const ProgramResult result = second->wait();
  EXPECT_EQ(result.exit_code, static_cast<int>(ErrorKind::kPeerLost)) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("lost the node where all meet (127.0.0.1:" + port + ")"),
                                Not(HasSubstr(" of 2 continue"))));
  expect_undisturbed_result(run(2, 2, "", {}, {"checkpoint.resume=auto"}));
}

TEST_F(Replicas, OfTwoHalvesThatNoLongerHearEachOtherTheOneThatDecidesGoesOn) {
  using testing::NetworkHosts;
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  NetworkHosts hosts(2);
  const auto start = [&](int node, const std::string& join_timeout) {
    return start_node(
        node, {"--master-addr", NetworkHosts::address(0), "--rdzv-conf", "join_timeout=" + join_timeout},
        &hosts);
  };
  const auto first = start(0, "600"), second = start(1, "4");
  ASSERT_TRUE(first->wait_for("step 3/12")) << first->err();
  hosts.cut_off(1);
  const ProgramResult cut_off = second->wait(), result = first->wait();
  EXPECT_EQ(cut_off.exit_code, static_cast<int>(ErrorKind::kPeerLost)) << cut_off.err;
  EXPECT_THAT(cut_off.err, AllOf(HasSubstr("lost the node where all meet"),
                                 HasSubstr("could not be reached again within 4 seconds"),
                                 Not(HasSubstr(" of 2 continue"))));
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, HasSubstr("replica 0 of 2 continue after step"));
}

TEST_F(Replicas, ANodeThatWasCutOffJoinsAgainWhenTheNetworkIsThere) {
  using testing::NetworkHosts;
  if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  NetworkHosts hosts(2);
  const auto start = [&](int node) {
    return start_node(node, {"--master-addr", NetworkHosts::address(0), "--min-replicas", "2"}, &hosts);
  };
  const auto first = start(0), second = start(1);
  ASSERT_TRUE(first->wait_for("step 3/12")) << first->err();
  hosts.cut_off(1);
  ASSERT_TRUE(first->wait_for("replica 1 (ranks 2 to 3) is lost")) << first->err();
  ASSERT_TRUE(second->wait_for("trying to join again")) << second->err();
  hosts.cut_off(-1);
  const ProgramResult rejoined = second->wait(), result = first->wait();
  EXPECT_EQ(rejoined.exit_code, 0) << rejoined.err;
  expect_undisturbed_result(result);
  EXPECT_THAT(result.err, AllOf(HasSubstr("takes the place of a lost node"),
                                HasSubstr("replicas 0, 1 of 2 continue after step")));
}

TEST_F(Replicas, AreRefusedByNameForAConfigThatTheyCannotTrain) {
  const ProgramResult result =
      run(2, 1, "", {"--min-replicas", "1"},
          {"training.global_batch_size=0", "training.gradient_accumulation_steps=1"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("training.global_batch_size must be given with fsdp-launch --replica-size 1"));
}

TEST_F(Replicas, TwentyFaultsAtRandomLeaveTheResultAsItIs) {
  const ProgramResult soak =
      testing::run({testing::source_folder() + "/tests/e2e/kill_soak", "--bin",
                    std::filesystem::path(program("fsdp-train")).parent_path().string(), "--replicas", "3x2",
                    "--faults", "20", "--steps", "100", "--seed", "3"},
                   {.timeout_seconds = 300});
  EXPECT_EQ(soak.exit_code, 0) << soak.out << soak.err;
}

}  // namespace
}  // namespace fsdp::e2e
