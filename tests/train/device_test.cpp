#include "train/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "util/cuda.h"
#include "util/error.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Device, IsTheCpuWhereThatIsAskedFor) { EXPECT_EQ(training_device("cpu", 0), c10::Device(c10::kCPU)); }

TEST(Device, IsTheCpuWhereThereIsNoGpu) {
  if (util::cuda_status().devices > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(training_device("auto", 0), c10::Device(c10::kCPU));
}

TEST(Device, IsRefusedWithTheReasonWhereThereIsNoGpu) {
  if (util::cuda_status().devices > 0) GTEST_SKIP() << "this machine has a GPU";
  try {
    training_device("cuda", 0);
    FAIL() << "cuda was accepted";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("training.device"), HasSubstr(util::cuda_status().obstacle)));
  }
}

TEST(Device, IsTheGpuOfTheRanksNumberAmongThoseOfItsHost) {
  const int gpus = util::cuda_status().devices;
  if (gpus == 0) GTEST_SKIP() << util::cuda_status().obstacle;
  for (int rank = 0; rank < 2 * gpus; ++rank) {
    EXPECT_EQ(training_device("cuda", rank).index(), rank % gpus);
  }
}

TEST(Float32MatmulPrecision, LetsGpusUseTf32OrNot) {
  EXPECT_FALSE(float32_products_use_tf32());
  set_float32_matmul_precision("high");
  EXPECT_TRUE(float32_products_use_tf32());
  set_float32_matmul_precision("highest");
  EXPECT_FALSE(float32_products_use_tf32());
}

}  // namespace
}  // namespace fsdp::train
