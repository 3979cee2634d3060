#include "run/train/step_profile.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/util/error.h"
#include "base/util/file.h"
#include "comm/api/communicator.h"
#include "shard/engine/fully_shard.h"
#include "support/temporary_folder.h"
#include "support/tiny_models.h"

namespace fsdp::train {
namespace {

TEST(StepProfile, WritesTheOperationsOfTheChosenStepsOnly) {
  testing::TemporaryFolder folder;
  {
    StepProfile profile(folder.path(), 3, {2, 4});
    for (int64_t step = 1; step <= 4; ++step) {
      profile.begin_step(step);
      const at::Tensor x = at::ones({4, 4});
      at::mm(x, x);
      if (step < 4) profile.end_step();  // step 4 fails
    }
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files.push_back(entry.path().filename());
  }
  ASSERT_EQ(files, std::vector<std::string>{"profile.rank3.step2.json"});
  const auto trace = nlohmann::json::parse(util::read_file(folder / files[0]));
  int products = 0;
  for (const auto& event : trace.at("traceEvents")) products += event.value("name", "") == "aten::mm";
  EXPECT_EQ(products, 1);
}

TEST(StepProfile, NamesTheUnits) {
  testing::TemporaryFolder folder;
  auto model = testing::make_initialized(testing::tiny_options());
  shard::ShardOptions options;
  options.min_num_params = 1;
  options.mixed_precision.param_dtype = "bfloat16";  // so that there is something to gather on one rank
  const auto engine = shard::fully_shard(*model, options, std::make_shared<comm::SingleCommunicator>());
  StepProfile profile(folder.path(), 0, {1});
  profile.begin_step(1);
  testing::loss_of(*model, testing::token_rows(0, 2, 8, 17)).backward();
  profile.end_step();
  const auto trace = nlohmann::json::parse(util::read_file(folder / "profile.rank0.step1.json"));
  std::set<std::string> names;
  for (const auto& event : trace.at("traceEvents")) names.insert(event.value("name", ""));
  for (const char* what : {"unit/gather", "unit/forward", "unit/reduce"}) {
    EXPECT_TRUE(names.contains(what + std::string(" ") + engine->units()[1]->name())) << what;
  }
}

TEST(NvtxRanges, AreRefusedWithoutAGpu) {
  EXPECT_NO_THROW(NvtxRanges(false, at::kCPU));
  EXPECT_THROW(NvtxRanges(true, at::kCPU), util::Error);
}

}  // namespace
}  // namespace fsdp::train
