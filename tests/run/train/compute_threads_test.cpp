// util::default_compute_threads() against libtorch.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/util/system.h"
#include "support/run_program.h"

namespace fsdp::train {
namespace {

// For processes in which nobody has set the number: the next test starts them.
TEST(ComputeThreads, DISABLED_AreRunByAsManyThreads) {
  EXPECT_EQ(util::default_compute_threads(), at::get_num_threads());
}

TEST(ComputeThreads, AreRunByAsManyThreadsWhateverTheEnvironmentSays) {
  using Environment = std::map<std::string, std::optional<std::string>>;
  const Environment unset = {{"OMP_NUM_THREADS", std::nullopt},
                             {"MKL_NUM_THREADS", std::nullopt},
                             {"MKL_DYNAMIC", std::nullopt},
                             {"GTEST_TOTAL_SHARDS", std::nullopt},
                             {"GTEST_SHARD_INDEX", std::nullopt}};
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
                      "--gtest_filter=ComputeThreads.DISABLED_AreRunByAsManyThreads"},
                     {.env = environment});
    EXPECT_EQ(result.exit_code, 0) << trace << result.out;
    EXPECT_NE(result.out.find("[  PASSED  ] 1 test"), std::string::npos) << trace << result.out;
  }
}

}  // namespace
}  // namespace fsdp::train
