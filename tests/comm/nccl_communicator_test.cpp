// What can be said of NCCL without a GPU; cuda/nccl_communicator_test.cpp has its collectives.

#include "comm/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "util/cuda.h"
#include "util/error.h"

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
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(util::cuda_status().obstacle));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(NcclCause, IsWhatNcclItselfHasSeen) {
  EXPECT_EQ(nccl_cause("NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.28.9\n"
                       "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                       "Last error:\n"
                       "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000\n"
                       "Exception raised from checkForNCCLErrorsInternal at ...\n"),
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000");
}

TEST(NcclCause, IsTheNameOfTheErrorWhereNcclSaysNoMore) {
  EXPECT_EQ(nccl_cause("NCCL error in: x.cpp:1, remote process exited or there was a network error\n"
                       "ncclRemoteError: A call failed possibly due to a network error.\n"
                       "Last error:\n"
                       "\n"
                       "Exception raised from f at ...\n"),
            "ncclRemoteError: A call failed possibly due to a network error.");
  EXPECT_EQ(nccl_cause("wait timeout after 5000ms\nException raised from ..."), "wait timeout after 5000ms");
}

}  // namespace
}  // namespace fsdp::comm
