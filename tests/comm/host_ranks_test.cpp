#include "comm/host_ranks.h"

#include <gtest/gtest.h>

namespace fsdp::comm {
namespace {

TEST(SharedGpu, IsOneOfTheSameHost) {
  EXPECT_EQ(shared_gpu({"a 0000:1b:00.0", "a 0000:3d:00.0"}), "");
  EXPECT_EQ(shared_gpu({"a 0000:1b:00.0", "b 0000:1b:00.0"}), "") << "of different hosts";
  EXPECT_EQ(shared_gpu({"a 0000:1b:00.0", "b 0000:1b:00.0", "a 0000:1b:00.0"}),
            "ranks 0 and 2 share a GPU (0000:1b:00.0)");
}

TEST(SharedGpu, IsNoneWhereRanksComputeOnTheCpu) {
  EXPECT_EQ(shared_gpu({"a ", "a "}), "");
  EXPECT_EQ(shared_gpu({}), "");
}

}  // namespace
}  // namespace fsdp::comm
