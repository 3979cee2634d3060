#include "train/step_profile.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/temporary_folder.h"
#include "util/file.h"

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

}  // namespace
}  // namespace fsdp::train
