#include "setup/config/parameter_groups.h"

#include <gtest/gtest.h>

#include "setup/config/config_text.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace {

TEST(ParameterGroups, AreTablesOfTheFile) {
  const Config config = parse_config(kTrain + R"([optimizer]
name = "adamw"
[[optimizer.groups]]
pattern = ["*embed*", "lm_head.*"]
lr = 1e-3
weight_decay = 0
[[optimizer.groups]]
pattern = "*norm*"
lr_scale = 2
)",
                                     "c.toml");
  EXPECT_EQ(config.optimizer.groups,
            (ParameterGroups{{.pattern = {"*embed*", "lm_head.*"}, .lr = 1e-3, .weight_decay = 0.0},
                             {.pattern = {"*norm*"}, .lr_scale = 2.0}}));
}

TEST(ParameterGroups, CanBeGivenOnTheCommandLine) {
  const Config config = parse_config(
      kTrain, "c.toml",
      {R"(optimizer.groups=[{pattern=["*norm*"], lr_scale=0.5}, {pattern="*", weight_decay=1}])"});
  EXPECT_EQ(config.optimizer.groups, (ParameterGroups{{.pattern = {"*norm*"}, .lr_scale = 0.5},
                                                      {.pattern = {"*"}, .weight_decay = 1.0}}));
}

TEST(ParameterGroups, DifferIfAnythingOfThemDiffers) {
  Config before, after;
  before.optimizer.groups = {{.pattern = {"a"}, .lr_scale = 1.0}};
  after.optimizer.groups = {{.pattern = {"a"}, .lr_scale = 2.0}};
  EXPECT_EQ(differing_keys(before, after),
            (std::vector<std::string>{"optimizer.groups: [{ pattern = [\"a\"], lr_scale = 1.0 }] -> "
                                      "[{ pattern = [\"a\"], lr_scale = 2.0 }]"}));
}

TEST(ParameterGroups, SayWhatIsWrongAndWhere) {
  auto refused = [](const std::string& fields, const std::string& found) {
    const std::string message = error_of(kTrain + "[[optimizer.groups]]\n" + fields + "\n");
    EXPECT_NE(message.find("optimizer.groups must be a list of tables"), std::string::npos) << message;
    EXPECT_NE(message.find(found), std::string::npos) << message;
  };
  refused("pattern = [\"a\"]\nlr_scale = -1", ", but is [{ pattern = [\"a\"], lr_scale = -1.0 }]");
  refused("pattern = [\"a\"]", ", but is [{ pattern = [\"a\"] }]");
  refused("lr = 1", ", but is [{ pattern = [], lr = 1.0 }]");
  refused("pattern = [\"\"]\nlr = 1", ", but is ");
  refused("pattern = [\"a\"]\nlr = 1\nlr_scale = 1", ", but is ");
  refused("pattern = [\"a\"]\nlr = inf", ", but is ");
  refused("pattern = [\"a\"]\nlr = \"fast\"", "but has the string \"fast\" as lr\n");
  refused("pattern = [3]\nlr = 1", "but has the integer 3 in pattern");
  refused("pattern = 3\nlr = 1", "but has the integer 3 as pattern");
  refused("pattern = [\"a\"]\nweigt_decay = 1", "but has the field weigt_decay; did you mean weight_decay?");
  EXPECT_NE(error_of(kTrain + "[optimizer]\ngroups = [1]\n").find("but contains the integer 1"),
            std::string::npos);
  EXPECT_NE(error_of(kTrain + "[optimizer.groups]\npattern = \"a\"\n").find("but is a table"),
            std::string::npos);
}

TEST(ParameterGroups, NeedARateToFollowTheSchedule) {
  const std::string message =
      error_of(kTrain, {"optimizer.lr=0", R"(optimizer.groups=[{pattern="*", lr=1}])"});
  EXPECT_NE(message.find("optimizer.groups must not set lr if optimizer.lr is 0"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace fsdp::config
