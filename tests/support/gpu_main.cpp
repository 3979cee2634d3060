// main() of the suites that need a GPU. Without one they are skipped: the exit code is what ctest is told to
// take for that (SKIP_RETURN_CODE).

#include <gtest/gtest.h>

#include <cstdio>

#include "base/device/cuda.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const fsdp::util::CudaStatus& status = fsdp::util::cuda_status();
  if (status.devices == 0) {
    std::printf("skipped for want of a GPU: %s\n", status.obstacle.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
