#include "train/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/tile_product.h"
#include "util/cuda.h"
#include "util/error.h"
#include "util/log.h"
#include "util/matrix_units.h"

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

/// What is logged while preparing the device for such training.
std::string said(const std::string& precision, bool warns, const std::string& matmul = "onednn") {
  std::string text;
  util::set_log_sink([&](util::LogLevel, std::string_view line) { text += line; });
  config::TrainingOptions training;
  training.device = "cpu";
  training.float32_matmul_precision = precision;
  training.matmul = matmul;
  EXPECT_EQ(prepare_device(training, 0, warns), c10::Device(c10::kCPU));
  EXPECT_EQ(float32_products_use_tf32(), precision == "high");
  util::set_log_sink({});
  set_float32_matmul_precision("highest");
  return text;
}

TEST(Float32MatmulPrecision, LetsTheMatrixUnitTakeSixteenBits) {
  EXPECT_EQ(kernels::float32_parts(), 3);
  set_float32_matmul_precision("high");
  EXPECT_EQ(kernels::float32_parts(), 2);
  EXPECT_TRUE(float32_products_are_shorter(kernels::Matmul::kAmx));
  EXPECT_FALSE(float32_products_are_shorter(kernels::Matmul::kOneDnn));
  set_float32_matmul_precision("highest");
  EXPECT_EQ(kernels::float32_parts(), 3);
  EXPECT_FALSE(float32_products_are_shorter(kernels::Matmul::kAmx));
  if (util::has_matrix_unit()) {
    EXPECT_EQ(said("high", true, "amx"), "");
  }
}

TEST(Float32MatmulPrecision, IsSaidToDoNothingOnACpuWithoutOne) {
  EXPECT_THAT(said("high", true), AllOf(HasSubstr("training.float32_matmul_precision: expected \"highest\""),
                                        HasSubstr("found \"high\", which does nothing here")));
  EXPECT_EQ(said("high", false), "") << "another rank says it";
  EXPECT_EQ(said("highest", true), "");
}

}  // namespace
}  // namespace fsdp::train
