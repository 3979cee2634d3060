#include "base/device/cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

using ::testing::HasSubstr;

TEST(CudaStatus, HasDevicesOrAnObstacleWithARemedy) {
  const CudaStatus& status = cuda_status();
  EXPECT_EQ(status.devices > 0, status.obstacle.empty()) << status.obstacle;
  EXPECT_EQ(status.obstacle.empty(), status.remedy.empty()) << status.remedy;
  if (!built_with_cuda()) {
    EXPECT_EQ(status.devices, 0);
    EXPECT_THAT(status.obstacle, HasSubstr("built without CUDA"));
    EXPECT_THAT(status.remedy, HasSubstr("scripts/build --cuda"));
  }
}

TEST(CudaStatus, IsTheReasonWhyADeviceIsRefusedInOneLine) {
  const CudaStatus& status = cuda_status();
  if (status.devices > 0) return require_cuda("a test");
  try {
    require_cuda("training.device");
    FAIL() << "there is no device";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(std::string(error.what()),
              "training.device: expected a CUDA device; found " + status.obstacle + "; " + status.remedy);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(CudaDevice, BeyondTheLastIsRefused) {
  const int beyond = cuda_status().devices;
  EXPECT_THROW(set_cuda_device(beyond), Error);
  EXPECT_THROW(cuda_device(beyond), Error);
  EXPECT_THROW(cuda_memory(beyond), Error);
  EXPECT_THROW(cuda_bytes_in_use(beyond), Error);
  EXPECT_THROW(reset_cuda_peak_memory(beyond), Error);
  EXPECT_THROW(set_cuda_device(-1), Error);
}

}  // namespace
}  // namespace fsdp::util
