// What a plan says of kernels that it does not link, against those kernels.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "kernels/attention.h"
#include "kernels/block_product.h"
#include "kernels/fused.h"
#include "kernels/matmul.h"
#include "plan/kernel_choices.h"
#include "support/run_program.h"
#include "util/compute_threads.h"

namespace fsdp::train {
namespace {

TEST(PlanKernels, CutTheLogitsIntoTheSameChunks) {
  for (int64_t rows : {1, 7, 64, 4096, 1 << 20}) {
    for (int64_t vocabulary : {1, 17, 256, 50'257, 128'256, 1 << 24, 1 << 26}) {
      EXPECT_EQ(plan::cross_entropy_chunk_rows(rows, vocabulary),
                kernels::cross_entropy_chunk_rows(rows, vocabulary))
          << rows << " rows of " << vocabulary;
    }
  }
}

TEST(PlanKernels, AreOfTheSameLibrary) {
  for (const char* name : {"auto", "mkl", "onednn"}) {
    EXPECT_EQ(plan::computes_by_onednn(name), kernels::matmul_by_name(name) == kernels::Matmul::kOneDnn)
        << name;
  }
}

TEST(PlanKernels, MultiplyAndAttendInTheSameWay) {
  for (const auto& [name, type] : {std::pair("float32", at::kFloat), std::pair("bfloat16", at::kBFloat16),
                                   std::pair("float16", at::kHalf)}) {
    EXPECT_EQ(plan::has_small_products(name), kernels::has_small_products(type)) << name;
    for (int64_t head_dim : {64, 63}) {
      EXPECT_EQ(plan::has_attention_kernel(name, head_dim),
                kernels::can_attend(at::empty({1, 2, 1, head_dim}, at::TensorOptions().dtype(type))))
          << name << " " << head_dim;
    }
  }
}

// For processes in which nobody has set the number: the next test starts them.
TEST(PlanKernels, DISABLED_AreRunByAsManyThreads) {
  EXPECT_EQ(util::default_compute_threads(), at::get_num_threads());
}

TEST(PlanKernels, AreRunByAsManyThreadsWhateverTheEnvironmentSays) {
  using Environment = std::map<std::string, std::optional<std::string>>;
  const Environment unset = {
      {"OMP_NUM_THREADS", std::nullopt}, {"MKL_NUM_THREADS", std::nullopt}, {"MKL_DYNAMIC", std::nullopt}};
  for (const Environment& changes :
       {Environment{}, Environment{{"OMP_NUM_THREADS", "1"}}, Environment{{"OMP_NUM_THREADS", "512"}},
        Environment{{"MKL_NUM_THREADS", "1"}, {"OMP_NUM_THREADS", "2"}},
        Environment{{"MKL_NUM_THREADS", "0"}, {"OMP_NUM_THREADS", "1"}},
        Environment{{"MKL_NUM_THREADS", "x"}},
        Environment{{"MKL_DYNAMIC", "FALSE"}, {"OMP_NUM_THREADS", "7,2"}},
        Environment{{"MKL_DYNAMIC", "false"}, {"MKL_NUM_THREADS", "9"}}}) {
    Environment environment = unset;
    std::string trace;
    for (const auto& [name, value] : changes) {
      environment[name] = value;
      trace += name + "=" + *value + " ";
    }
    const testing::ProgramResult result =
        testing::run({"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_brief=0",
                      "--gtest_filter=PlanKernels.DISABLED_AreRunByAsManyThreads"},
                     {.env = environment});
    EXPECT_EQ(result.exit_code, 0) << trace << result.out;
    EXPECT_NE(result.out.find("[  PASSED  ] 1 test"), std::string::npos) << trace << result.out;
  }
}

}  // namespace
}  // namespace fsdp::train
