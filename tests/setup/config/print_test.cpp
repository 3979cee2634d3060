#include "setup/config/print.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "setup/config/config_text.h"
#include "setup/config/keys.h"
#include "support/source_folder.h"

namespace fsdp::config {
namespace {

Config unusual() {
  Config config;
  config.run.name = "qu\"ote \\ back\xC3\xA4";
  config.run.seed = std::numeric_limits<int64_t>::max();
  config.data.train = {"a, b.bin", "c].bin", "#d.bin", "'e'"};
  config.optimizer.lr = 0.1 + 0.2;
  config.optimizer.eps = std::numeric_limits<double>::denorm_min();
  config.optimizer.weight_decay = std::numeric_limits<double>::max();
  config.optimizer.betas = {std::nextafter(1.0, 0.0), 1.0 / 3.0};
  config.training.norm_type = std::numeric_limits<double>::infinity();
  config.training.fused_kernels = false;
  config.model.num_key_value_heads = 4;
  config.fsdp.exclude_stages = {};
  config.optimizer.groups = {{.pattern = {"*no\"rm*", "*.bias"}, .lr_scale = 0.1, .weight_decay = 1.0 / 3.0},
                             {.pattern = {"*"}, .lr = 3e-4}};
  return config;
}

TEST(ToToml, ReadsBackToTheSameConfiguration) {
  Config config = unusual();
  Config read = parse_config(to_toml(config), "printed.toml");
  EXPECT_EQ(differing_keys(config, read), std::vector<std::string>());
  EXPECT_EQ(to_toml(read), to_toml(config));
  EXPECT_FALSE(read.optimizer.fused);
}

TEST(ToToml, HasEveryKeyInTheOrderOfTheTable) {
  std::istringstream lines(to_toml(unusual()));
  std::string section;
  size_t at = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    if (line.front() == '[') {
      section = line.substr(1, line.size() - 2);
      continue;
    }
    ASSERT_LT(at, all_keys().size());
    EXPECT_EQ(section + "." + line.substr(0, line.find(' ')), all_keys()[at++].full_name());
  }
  EXPECT_EQ(at, all_keys().size());
}

TEST(KeyReference, HasALineForEveryKeyWithDefaultAndLimits) {
  std::string reference = key_reference();
  for (const std::string& section : section_names()) {
    EXPECT_NE(reference.find("[" + section + "]\n"), std::string::npos) << section;
  }
  for (const Key& key : all_keys()) {
    EXPECT_NE(reference.find("\n  " + key.name + " "), std::string::npos) << key.full_name();
    EXPECT_NE(reference.find(key.description), std::string::npos) << key.full_name();
  }
  EXPECT_NE(reference.find("[\"none\", \"implicit\", \"explicit\"]"), std::string::npos);
  EXPECT_NE(reference.find("steps of the whole run [>= 1 and <= 1000000000]"), std::string::npos);
  EXPECT_NE(reference.find("momentum; matters when optimizer.name is sgd or muon [>= 0 and < 1]"),
            std::string::npos);
}

TEST(KeyReference, IsThePageOfTheDocumentation) {
  std::ifstream file(testing::source_folder() + "/docs/reference.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(page == key_reference_markdown())
      << "docs/reference.md differs from the table of keys; write it again: build/bin/fsdp-train keys > docs/reference.md";
}

TEST(KeyReference, EscapesWhatMarkdownWouldRead) {
  EXPECT_NE(key_reference_markdown().find(
                "\n| `keep_float32` | list of strings | `[]` | patterns (\\* and ?) of "
                "parameters that stay float32, and exact on all links: \"\\*norm\\*\"; matters when "),
            std::string::npos);
}

TEST(DifferingKeys, NamesKeyAndBothValues) {
  Config before, after;
  EXPECT_TRUE(differing_keys(before, after).empty());
  after.training.steps = 400;
  after.optimizer.betas = {0.9, 0.999};
  EXPECT_EQ(differing_keys(before, after),
            (std::vector<std::string>{"training.steps: 200 -> 400",
                                      "optimizer.betas: [0.9, 0.95] -> [0.9, 0.999]"}));
}

}  // namespace
}  // namespace fsdp::config
