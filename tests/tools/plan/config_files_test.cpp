// The files of configs/: each can be planned, and its comments state the model and the units that it has.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "setup/config/load.h"
#include "setup/config/presets.h"
#include "support/source_folder.h"
#include "tools/plan/plan.h"

namespace fsdp::plan {
namespace {

namespace fs = std::filesystem;

TEST(ConfigFiles, CanAllBePlanned) {
  int planned = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testing::source_folder() + "/configs")) {
    if (!entry.is_regular_file()) continue;
    SCOPED_TRACE(entry.path().filename());
    const bool has_mesh = entry.path().parent_path().filename() == "plan";
    const Plan plan = make_plan(config::load_config(entry.path()), {.world_size = has_mesh ? 0 : 16});
    EXPECT_EQ(plan.warnings, std::vector<std::string>{});
    EXPECT_GT(plan.memory.device_peak, 0);
    ++planned;
  }
  EXPECT_GE(planned, 15);
}

TEST(ConfigFiles, HaveTheModelsAndUnitsOfTheirComments) {
  std::map<std::string, Plan> plans;
  for (const config::Preset& preset : config::all_presets()) {
    plans[preset.name] = make_plan(config::parse_config(preset.text, preset.name), {.world_size = 16});
  }
  const auto millions = [&](const std::string& preset) {
    return std::round(static_cast<double>(plans.at(preset).parameters) / 1e5) / 10;
  };
  EXPECT_EQ(millions("quickstart"), 3.3);
  EXPECT_EQ(std::round(millions("finetune")), 135);
  EXPECT_EQ(std::round(millions("pretrain")), 124);
  // A unit for each block and the root unit; with `low-memory` two for each block.
  EXPECT_EQ(plans.at("quickstart").units.size(), 4u + 1);
  EXPECT_EQ(plans.at("finetune").units.size(), 30u + 1);
  EXPECT_EQ(plans.at("low-memory").units.size(), 2 * 12u + 1);
  for (const char* name : {"pretrain", "offload", "multi-node", "hsdp"}) {
    EXPECT_EQ(plans.at(name).units.size(), 12u + 1) << name;
    EXPECT_GT(plans.at(name).memory.device_peak, plans.at("low-memory").memory.device_peak) << name;
    EXPECT_EQ(plans.at(name).parameters, plans.at("low-memory").parameters) << name;
  }
}

}  // namespace
}  // namespace fsdp::plan
