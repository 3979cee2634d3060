#include "tools/launch/verdict.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace fsdp::launch {
namespace {

WorkerEnd exited(int rank, int code, int round, std::set<int> sent = {}) {
  return {.rank = rank,
          .pid = 1000 + rank,
          .status = {.exit_code = code},
          .round = round,
          .stop_signals_sent = sent};
}

WorkerEnd killed(int rank, int signal, int round, std::set<int> sent = {}) {
  return {.rank = rank,
          .pid = 1000 + rank,
          .status = {.signal = signal},
          .round = round,
          .stop_signals_sent = sent};
}

TEST(Verdict, IsZeroWhenAllFinished) {
  const Verdict verdict = judge({exited(0, 0, 1), exited(1, 0, 2)});
  EXPECT_EQ(verdict.exit_code, 0);
  EXPECT_FALSE(verdict.culprit);
}

TEST(Verdict, IsPreemptedWhenWorkersSavedAndStopped) {
  EXPECT_EQ(judge({exited(0, 75, 1, {SIGTERM}), exited(1, 75, 1, {SIGTERM})}).exit_code, 75);
  EXPECT_EQ(judge({exited(0, 75, 1), exited(1, 0, 1)}).exit_code, 75);
}

TEST(Verdict, TakesALostPeerAsAConsequenceOfItsPreemption) {
  EXPECT_EQ(judge({exited(0, 5, 1), exited(1, 75, 2)}).exit_code, 75);
  EXPECT_FALSE(judge({exited(0, 5, 1), exited(1, 75, 2)}).is_failure());
  EXPECT_EQ(judge({exited(0, 6, 1), exited(1, 75, 2)}).exit_code, 6);
}

TEST(Verdict, TakesAStopAfterAFailureForNoPreemption) {
  WorkerEnd stopped = exited(1, 75, 2, {SIGTERM});
  stopped.told_after_failure = true;
  const Verdict verdict = judge({exited(0, 5, 1), stopped});
  EXPECT_EQ(verdict.exit_code, 5) << "nothing was saved, and a batch system would queue the job again";
  EXPECT_TRUE(verdict.is_failure());
  EXPECT_EQ(kind_of(stopped), EndKind::kStopped);
  EXPECT_FALSE(was_preempted(stopped));
}

TEST(Verdict, ExpectsAnotherEndOfAllButMistakesAndDivergence) {
  for (const int code : {1, 3, 4, 5, 6, 7, 130})
    EXPECT_TRUE(may_end_differently(judge({exited(0, code, 1)}))) << code;
  for (const int code : {2, 8}) EXPECT_FALSE(may_end_differently(judge({exited(0, code, 1)}))) << code;
  EXPECT_TRUE(may_end_differently(judge({killed(0, 2, 1), exited(1, 2, 2)}))) << "a signal is no exit code";
  EXPECT_TRUE(may_end_differently({.exit_code = 2, .cause = "lost a node"}));
}

TEST(Verdict, NamesTheFirstThatFailed) {
  const Verdict verdict = judge({exited(3, 7, 2), exited(2, 4, 1), exited(0, 1, 3)});
  EXPECT_EQ(verdict.exit_code, 4);
  EXPECT_EQ(verdict.culprit->rank, 2);
}

TEST(Verdict, NamesTheLowestRankOfOneRound) {
  EXPECT_EQ(judge({exited(3, 7, 1), exited(1, 4, 1)}).culprit->rank, 1);
}

TEST(Verdict, PrefersACauseToALostPeerThatWasNoticedEarlier) {
  const Verdict verdict = judge({exited(0, 5, 1), exited(1, 8, 2, {SIGTERM})});
  EXPECT_EQ(verdict.culprit->rank, 1);
  EXPECT_EQ(verdict.exit_code, 8);
  EXPECT_EQ(judge({exited(0, 5, 1), killed(1, SIGSEGV, 2, {SIGTERM})}).exit_code, 128 + SIGSEGV);
}

TEST(Verdict, TakesWhatEndedByOurSignalsAsAConsequence) {
  const Verdict verdict = judge({exited(0, 5, 1), killed(1, SIGTERM, 2, {SIGTERM}),
                                 killed(2, SIGKILL, 3, {SIGTERM, SIGKILL}), exited(3, 143, 2, {SIGTERM})});
  EXPECT_EQ(verdict.culprit->rank, 0);
  EXPECT_EQ(verdict.exit_code, 5);
}

TEST(Verdict, TakesASignalThatWeDidNotSendAsACause) {
  EXPECT_EQ(kind_of(killed(0, SIGKILL, 1)), EndKind::kFailed);
  EXPECT_EQ(kind_of(killed(0, SIGKILL, 1, {SIGTERM})), EndKind::kFailed);
  EXPECT_EQ(judge({killed(0, SIGKILL, 1)}).exit_code, 137);
}

TEST(Verdict, ReportsTheSignalWhenAllWereToldToStop) {
  const Verdict verdict = judge({killed(1, SIGTERM, 1, {SIGTERM}), exited(0, 75, 1, {SIGTERM})});
  EXPECT_EQ(verdict.exit_code, 143);
  EXPECT_EQ(kind_of(*verdict.culprit), EndKind::kStopped);
}

}  // namespace
}  // namespace fsdp::launch
