// What can be said of NCCL without a GPU; cuda/nccl_communicator_test.cpp has its collectives.

#include "comm/nccl/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/device/cuda.h"
#include "base/util/error.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;

TEST(NcclCommunicator, IsRefusedInOneLineWhereThereIsNoGpu) {
  if (util::cuda_status().devices > 0) GTEST_SKIP() << "there are GPUs";
  try {
    make_nccl_communicator({.store = c10::make_intrusive<c10d::HashStore>(),
                            .identity = run_identity({0, 1, 0, 1, "127.0.0.1", 0}),
                            .timeout = std::chrono::seconds(5)});
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(util::cuda_status().obstacle));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp::comm
