#include "tools/simulate/proposals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "setup/config/load.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/source_folder.h"
#include "tools/plan/machines.h"

namespace fsdp::simulate {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

config::Config small_llama(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"model.num_hidden_layers=4", "model.vocab_size=1024",
                                  "data.sequence_length=512"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return config::load_config(testing::source_folder() + "/configs/plan/llama3_8b.toml", all);
}

/// Two hosts with four GPUs each.
plan::Plan on_two_hosts(const config::Config& config) {
  plan::GivenMachines given;
  given.world_size = 8;
  given.gpus_per_node = 4;
  given.gpu = "h100";
  return plan::plan_needs(config, plan::machines_of(config, given));
}

std::vector<Proposal> proposed(const std::vector<Candidate>& candidates, const std::string& network) {
  return propose(candidates, small_llama, on_two_hosts, {.network = network});
}

const Proposal& named(const std::vector<Proposal>& proposals, const std::string& name) {
  const auto found = std::ranges::find_if(
      proposals, [&](const Proposal& proposal) { return proposal.candidate.name == name; });
  if (found == proposals.end()) throw std::runtime_error("no proposal " + name);
  return *found;
}

TEST(Candidates, AreTextsOfOverrides) {
  const Candidate candidate = candidate_from_text(" fsdp.strategy=no_shard  optimizer.lr=1e-3 ");
  EXPECT_THAT(candidate.overrides, ElementsAre("fsdp.strategy=no_shard", "optimizer.lr=1e-3"));
  EXPECT_TRUE(candidate.changes_training);
  for (const char* text : {"", "  ", "no_shard", "fsdp.strategy", "strategy=no_shard a.b=c"}) {
    EXPECT_THROW(candidate_from_text(text), util::Error) << text;
  }
}

TEST(Candidates, BeginWithTheConfigAndHaveReplicasPerHostWhereThereAreSeveralHosts) {
  const auto overrides_of = [](int64_t world, int64_t ranks_of_host) {
    std::vector<std::string> all;
    const auto candidates = built_in_candidates(small_llama({}), world, ranks_of_host);
    EXPECT_TRUE(candidates.front().overrides.empty());
    for (const Candidate& candidate : candidates) {
      all.insert(all.end(), candidate.overrides.begin(), candidate.overrides.end());
    }
    return all;
  };
  EXPECT_THAT(overrides_of(8, 4), AllOf(Contains("fsdp.strategy=hybrid_shard"), Contains("mesh.dcn=2")));
  EXPECT_THAT(overrides_of(8, 0), ::testing::Not(Contains("fsdp.strategy=hybrid_shard")));
  const auto with_a_batch = built_in_candidates(small_llama({"training.global_batch_size=64"}), 8, 4);
  EXPECT_LT(with_a_batch.size(), built_in_candidates(small_llama({}), 8, 4).size())
      << "the number of micro-batches follows from the batch";
}

TEST(Proposals, AreSortedBySpeedAndPreferReplicasOnSlowLinks) {
  const auto proposals = proposed(built_in_candidates(small_llama({}), 8, 4), "tcp-10");
  ASSERT_GT(proposals.size(), 5u);
  for (size_t i = 1; i < proposals.size(); ++i) {
    if (!proposals[i].refusal.empty() || proposals[i].fits != proposals[i - 1].fits) continue;
    EXPECT_LE(proposals[i].tokens_per_second, proposals[i - 1].tokens_per_second);
  }
  const Proposal& full = named(proposals, "as given");
  const Proposal& hybrid = named(proposals, "hybrid_shard per host");
  EXPECT_GT(hybrid.device_peak, full.device_peak);
  const Proposal& coded = named(proposals, "hybrid_shard per host, int8 between hosts");
  EXPECT_LT(coded.bytes_from_other_hosts, 0.26 * hybrid.bytes_from_other_hosts) << "gradients in fp32";
  EXPECT_GT(coded.tokens_per_second, 1.5 * full.tokens_per_second);
  const Proposal& local = named(proposals, "hybrid_shard per host, 50 local steps");
  EXPECT_LT(local.bytes_from_other_hosts, hybrid.bytes_from_other_hosts / 40);
  EXPECT_GT(local.tokens_per_second, coded.tokens_per_second);
  EXPECT_NE(proposals.front().candidate.name, "as given");
}

TEST(Proposals, LeaveOutWhatEqualsAnEarlierOneAndKeepTheReasonOfARefusal) {
  const auto proposals = proposed({{.name = "as given"},
                                   {.name = "the same", .overrides = {"mesh.dcn=1"}},
                                   {.name = "impossible", .overrides = {"mesh.dcn=3", "mesh.data=3"}}},
                                  "tcp-10");
  ASSERT_EQ(proposals.size(), 2u);
  EXPECT_EQ(proposals[0].candidate.name, "as given");
  EXPECT_THAT(proposals[1].refusal, HasSubstr("[mesh]"));
  EXPECT_THROW(proposed({{.name = "impossible", .overrides = {"mesh.dcn=3", "mesh.data=3"}}}, "tcp-10"),
               util::Error)
      << "of the config itself";
}

TEST(FsdpPlanPropose, PrintsATableAndTheOverridesOfTheBest) {
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {testing::program_path("fsdp-plan"),
                                        "--preset",
                                        "llama3-8b",
                                        "--gpus",
                                        "16",
                                        "--gpu",
                                        "h100",
                                        "--simulate",
                                        "--network",
                                        "tcp-10",
                                        "--propose"};
    command.insert(command.end(), more.begin(), more.end());
    return testing::run(command);
  };
  testing::ProgramResult result = run({"--candidate", "fsdp.strategy=no_shard training.no_sync=true"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("the fastest first"), HasSubstr("as given"), HasSubstr("hybrid_shard"),
                    HasSubstr("To train as in the first line, add: fsdp.strategy=")));
  result = run({"--json", "--candidate", "optimizer.lr=0.01 mesh.context=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("world_size"), 16);
  std::vector<std::string> names;
  for (const auto& row : json.at("proposals")) names.push_back(row.at("name"));
  EXPECT_THAT(names, AllOf(Contains("as given"), Contains("optimizer.lr=0.01 mesh.context=2")));
  result = run({"--candidate", "no_shard"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--candidate must be overrides"));
  result = run({"--mtbf-hours", "5000"});
  EXPECT_EQ(result.exit_code, 2);
}

}  // namespace
}  // namespace fsdp::simulate
