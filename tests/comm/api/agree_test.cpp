#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "support/connected_ranks.h"

namespace fsdp::comm {
namespace {

using Group = std::shared_ptr<Communicator>;

class Agree : public ::testing::TestWithParam<std::string> {};

TEST_P(Agree, WaitsForABodyThatTakesLongerThanACollectiveMay) {
  testing::run_ranks_over(GetParam(), {.world_size = 3, .timeout_seconds = 1}, [](Group& group) {
    bool is_done = false;
    agree(*group, "deletion of old files", [&] {
      if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      is_done = true;
    });
    EXPECT_TRUE(is_done);
    group->barrier({.unit = "still usable"});
  });
}

TEST_P(Agree, TellsOfAFailureAfterSuchABody) {
  testing::run_ranks_over(GetParam(), {.world_size = 2, .timeout_seconds = 1}, [](Group& group) {
    try {
      agree(*group, "reading", [&] {
        if (group->rank() == 1) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        fail(ErrorKind::kIo, "the disk is gone");
      });
      ADD_FAILURE() << "rank " << group->rank();
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_EQ(std::string(error.what()), "the disk is gone (on rank 0)");
    }
  });
}

TEST_P(Agree, AtOnceLeavesCollectivesToTheBody) {
  testing::run_ranks_over(GetParam(), {.world_size = 2}, [](Group& group) {
    agree_at_once(*group, "a body with collectives", [&] { group->barrier({.unit = "of the body"}); });
  });
}

INSTANTIATE_TEST_SUITE_P(All, Agree, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::comm
