#include "tools/launch/wait_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/util/error.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

/// A worker that ended by its time-out.
WorkerEnd ended(int rank, Standing standing, ExitStatus status = {.exit_code = 6}) {
  return {.rank = rank, .pid = 100 + rank, .status = status, .host = "h", .standing = std::move(standing)};
}

WorkerEnd waiting(int rank, const std::string& collective, int64_t step, int64_t collectives = -1,
                  double seconds = 5) {
  return ended(rank, {.doing = concat("in ", collective, ", step ", step, ", for ", seconds, " s"),
                      .collective = collective,
                      .step = step,
                      .collectives = collectives,
                      .seconds = seconds});
}

WorkerEnd computing(int rank, const std::string& last, int64_t step, int64_t collectives = -1) {
  return ended(rank, {.doing = concat("computing, step ", step, ", 4.0 s after ", last),
                      .last_collective = last,
                      .step = step,
                      .collectives = collectives});
}

TEST(WaitTable, NamesWorkersOfWhichNothingIsKnownByTheirRanks) {
  std::vector<WorkerEnd> ends{waiting(0, "all_gather of b", 4), {.rank = 1, .status = {}}};
  EXPECT_THAT(wait_table(ends, {}),
              AllOf(HasSubstr("\n    rank 1: no report\n"),
                    EndsWith("rank 0 waits in all_gather of b, step 4, for rank 1, which sent no report")));
  for (int rank = 2; rank < 40; ++rank) ends.push_back({.rank = rank, .status = {}});
  EXPECT_THAT(wait_table(ends, {}), HasSubstr("\n    ranks 1-39: no report\n"));
}

TEST(WaitTable, NamesTheRankThatTheOthersWaitFor) {
  const std::string table =
      wait_table({waiting(0, "reduce_scatter of b", 4), computing(2, "all_gather of a", 4),
                  waiting(3, "reduce_scatter of b", 4), waiting(1, "reduce_scatter of b", 4)},
                 {});
  EXPECT_EQ(
      table,
      "\n    rank 0 (pid 100 on h): in reduce_scatter of b, step 4, for 5 s"
      "\n    rank 1 (pid 101 on h): in reduce_scatter of b, step 4, for 5 s"
      "\n    rank 2 (pid 102 on h): computing, step 4, 4.0 s after all_gather of a"
      "\n    rank 3 (pid 103 on h): in reduce_scatter of b, step 4, for 5 s"
      "\n    ranks 0, 1 and 3 wait in reduce_scatter of b, step 4, for rank 2, which is computing, step "
      "4, 4.0 s after all_gather of a");
}

TEST(WaitTable, TellsChainsOfWaitsByTheNumberOfCollectives) {
  const std::string table =
      wait_table({waiting(0, "all_gather of b", 4, 12), waiting(1, "all_gather of a", 4, 11),
                  computing(2, "all_reduce of norm", 4, 11), computing(3, "all_gather of b", 4, 13)},
                 {});
  EXPECT_THAT(table,
              HasSubstr("rank 0 waits in all_gather of b, step 4, for rank 1, which is in all_gather of "
                        "a, step 4, for 5 s; for rank 2, which is computing, step 4, 4.0 s"));
  EXPECT_THAT(table,
              EndsWith("rank 1 waits in all_gather of a, step 4, for rank 2, which is computing, step 4, "
                       "4.0 s after all_reduce of norm"))
      << "rank 3 is past both";
}

TEST(WaitTable, WaitsForNobodyWhoIsPastTheCollective) {
  const std::string table = wait_table({waiting(0, "all_gather of b", 4), computing(1, "all_gather of a", 5),
                                        computing(2, "all_gather of b", 4)},
                                       {});
  EXPECT_THAT(table, Not(HasSubstr("waits in")));
}

TEST(WaitTable, SaysHowThoseEndedWhoDidNotSay) {
  const std::string table = wait_table({waiting(0, "all_gather of b", 4), ended(1, {}, {.signal = SIGKILL}),
                                        ended(2, {}, {.signal = SIGKILL}), ended(3, {}, {.exit_code = 3})},
                                       {});
  EXPECT_THAT(table, AllOf(HasSubstr("\n    rank 1 (pid 101 on h): no report; was ended by SIGKILL\n"),
                           EndsWith("for ranks 1 and 2, which sent no report and were ended by SIGKILL; for "
                                    "rank 3, which sent no report and ended with exit code 3")));
}

TEST(WaitTable, ShowsNodesThatSentNoReport) {
  const std::string table = wait_table({waiting(0, "all_gather of b", 4)},
                                       {{.node_rank = 1, .host = "h1", .first_rank = 1, .workers = 8}});
  EXPECT_THAT(table, AllOf(HasSubstr("\n    node 1 (h1): no report\n"),
                           EndsWith("rank 0 waits in all_gather of b, step 4, for ranks 1-8 of node 1 (h1), "
                                    "which sent no report")));
}

TEST(WaitTable, TellsWhoCameLateWhenAllAreInTheSameCollective) {
  EXPECT_THAT(
      wait_table({waiting(0, "all_gather of b", 4, 9, 5), waiting(1, "all_gather of b", 4, 9, 0.25)}, {}),
      EndsWith("all 2 ranks are in all_gather of b, step 4; rank 1 for 0.2 s only, rank 0 for 5.0 s"));
}

TEST(WaitTable, IsEmptyForProgramsThatSayNothing) {
  EXPECT_EQ(wait_table({ended(0, {}), ended(1, {})}, {{.node_rank = 1, .host = "h1"}}), "");
}

TEST(WaitTable, StaysShortForManyRanks) {
  constexpr int kRanks = 20000;
  std::vector<WorkerEnd> ends;
  for (int rank = 0; rank < kRanks; ++rank) {
    ends.push_back(waiting(rank, "all_gather of b", 4));
    ends.back().host = concat("host", rank / 8);
  }
  ends[77] = computing(77, "all_gather of a", 4);
  const std::string table = wait_table(ends, {});
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  EXPECT_THAT(table, AllOf(HasSubstr("ranks 0-76 and 78-19999 (host0, host1, host2 and 2497 more): in "),
                           HasSubstr("for rank 77, which is computing")));
  // Each in a place of its own.
  for (int rank = 0; rank < kRanks; ++rank) {
    ends[static_cast<size_t>(rank)] = waiting(rank, concat(std::string(200, 'x'), rank), rank, rank);
  }
  EXPECT_LT(wait_table(ends, std::vector<SilentNode>(1000)).size(), 64u << 10);
}

}  // namespace
}  // namespace fsdp::launch
