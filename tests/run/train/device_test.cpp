#include "run/train/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/matrix_units.h"
#include "comm/threads/thread_communicator.h"
#include "model/kernels/tile_product.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Device, IsTheCpuWhereThatIsAskedFor) { EXPECT_EQ(training_device("cpu", 0), c10::Device(c10::kCPU)); }

TEST(Device, IsTheCpuWithoutAGpu) {
  if (util::cuda_status().devices > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(training_device("auto", 0), c10::Device(c10::kCPU));
}

TEST(Device, IsRefusedWithTheReasonWithoutAGpu) {
  if (util::cuda_status().devices > 0) GTEST_SKIP() << "this machine has a GPU";
  try {
    training_device("cuda", 0);
    FAIL() << "cuda was accepted";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
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
  EXPECT_THAT(said("high", true),
              AllOf(HasSubstr("training.float32_matmul_precision = \"high\" has no effect on a CPU"),
                    HasSubstr("leave it out")));
  EXPECT_EQ(said("high", false), "") << "another rank says it";
  EXPECT_EQ(said("highest", true), "");
}

TEST(Deterministic, LetsLibtorchChooseKernelsThatRepeatTheirResults) {
  config::TrainingOptions training;
  training.device = "cpu";
  for (const bool deterministic : {true, false}) {
    training.deterministic = deterministic;
    prepare_device(training, 0, /*warns=*/true);
    EXPECT_EQ(at::globalContext().deterministicAlgorithms(), deterministic);
    EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
    EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
  }
}

/// Products take 6, 4, 8 and 5 ms by this clock.
double told_seconds() {
  constexpr std::array<double, 4> kMoments = {1, 1.008, 2, 2.004};
  static size_t calls = 0;
  return kMoments[calls++ % kMoments.size()];
}

TEST(MeasuredMatmulRate, IsThatOfTheBestProductTimesTheThreads) {
  const int threads = at::get_num_threads();
  for (const int used : {1, 2}) {
    at::set_num_threads(used);
    for (const char* dtype : {"float32", "bfloat16"}) {
      const double rate =
          measured_matmul_rate(dtype, kernels::matmul_by_name("auto"), at::kCPU, told_seconds);
      const double expected = 2.0 * 512 * 512 * 512 / 0.004 * used;
      EXPECT_NEAR(rate, expected, 1e-6 * expected) << dtype << ", " << used;
    }
  }
  at::set_num_threads(threads);
}

TEST(MeasuredMatmulRate, IsByTheTimeThatAThreadComputes) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto cpu_seconds = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const at::Tensor x = at::rand({512, 512}), weight = at::rand({512, 512});
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    const double begin = cpu_seconds();
    kernels::linear(x, weight, kernels::matmul_by_name("auto"));
    best = std::max(best, 2.0 * 512 * 512 * 512 / (cpu_seconds() - begin));
  }
  const double rate = measured_matmul_rate("float32", kernels::matmul_by_name("auto"));
  EXPECT_GT(rate, best / 5);  // a wide margin: the frequency of a busy processor changes
  EXPECT_LT(rate, best * 5);
  at::set_num_threads(threads);
}

TEST(MeasuredMatmulRate, MultipliesNumbersThatDiffer) {
  const at::Tensor numbers = numbers_to_multiply(512, at::kFloat, at::kCPU);
  EXPECT_NEAR(numbers.std().item<double>(), std::sqrt(0.5), 0.01) << "as a sine has it; 0 for a constant";
  EXPECT_FALSE(numbers[0].equal(numbers[1])) << "rows";
  EXPECT_EQ(numbers_to_multiply(64, at::kBFloat16, at::kCPU).scalar_type(), at::kBFloat16);
}

TEST(PeakRate, IsRaisedByAStepThatIsFaster) {
  PeakRate peak{100, "measured"};
  int measured = 0;
  const auto finds = [&](double rate) { return [&measured, rate] { return ++measured, rate; }; };
  EXPECT_DOUBLE_EQ(utilisation(peak, 50, finds(400)), 0.5);
  EXPECT_EQ(measured, 0) << "nothing was wrong";
  EXPECT_DOUBLE_EQ(utilisation(peak, 200, finds(400)), 0.5) << "measured again";
  EXPECT_DOUBLE_EQ(peak.flops_per_second, 400);
  EXPECT_DOUBLE_EQ(utilisation(peak, 800, finds(100)), 1) << "the second measure is too low as well";
  EXPECT_DOUBLE_EQ(utilisation(peak, 400, finds(100)), 0.5);
  EXPECT_EQ(measured, 2);
}

TEST(PeakRate, OfADataSheetIsRaisedAndThenNoLongerOfIt) {
  PeakRate peak{100, "data sheet"};
  EXPECT_DOUBLE_EQ(utilisation(peak, 200, [] { return 0.0; }), 1);
  EXPECT_STREQ(peak.source, "measured");
}

TEST(PeakRate, GivenByTheUserStays) {
  config::Config config;
  config.logging.peak_tflops = 2;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    PeakRate peak = find_peak_rate(config, communicator);
    EXPECT_TRUE(peak.is_given());
    EXPECT_DOUBLE_EQ(utilisation(peak, 3e12, [] { return 9e12; }), 1.5);
    EXPECT_DOUBLE_EQ(peak.flops_per_second, 2e12);
  });
}

TEST(PeakRate, IsTheLargestOverRanksWhereItIsMeasured) {
  std::array<PeakRate, 3> peaks;
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    peaks[static_cast<size_t>(communicator.rank())] = find_peak_rate(config::Config{}, communicator);
  });
  for (const PeakRate& peak : peaks) {
    EXPECT_STREQ(peak.source, "measured");
    EXPECT_GT(peak.flops_per_second, 0);
    EXPECT_EQ(peak.flops_per_second, peaks[0].flops_per_second);
  }
}

TEST(PeakRate, OfAGpuIsThatOfItsDataSheet) {
  EXPECT_DOUBLE_EQ(data_sheet_rate("NVIDIA H100 80GB HBM3", "bfloat16"), 989.5e12);
  EXPECT_DOUBLE_EQ(data_sheet_rate("NVIDIA A100-SXM4-80GB", "bfloat16"), 312e12);
  EXPECT_DOUBLE_EQ(data_sheet_rate("Tesla T4", "bfloat16"), 0) << "its matrix units have none";
  EXPECT_DOUBLE_EQ(data_sheet_rate("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16"), 0);
  set_float32_matmul_precision("high");
  EXPECT_DOUBLE_EQ(data_sheet_rate("NVIDIA H100 80GB HBM3", "float32"), 494.5e12);
  EXPECT_DOUBLE_EQ(data_sheet_rate("Tesla V100-SXM2-16GB", "float32"), 15.7e12) << "it has no TF32";
  set_float32_matmul_precision("highest");
  EXPECT_DOUBLE_EQ(data_sheet_rate("NVIDIA H100 80GB HBM3", "float32"), 67e12);
}

TEST(PeakRate, CountsThreadsThatHaveAProcessor) {
  EXPECT_DOUBLE_EQ(share_of_threads(4, 8), 1);
  EXPECT_DOUBLE_EQ(share_of_threads(8, 2), 0.25);
  EXPECT_DOUBLE_EQ(share_of_threads(8, 0), 1) << "the number is not known";
}

}  // namespace
}  // namespace fsdp::train
