#include <gtest/gtest.h>

#include "setup/config/config_text.h"
#include "setup/config/keys.h"
#include "setup/config/load.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace {

TEST(Origins, NameDefaultLineOrCommandLine) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("c.toml", kTrain + "[training]\nsteps = 5\nskip_nonfinite = true\n");
  const TracedConfig traced =
      trace_config(path, {"training.steps=7", "optimizer.lr=1e-4", "model.num_attention_heads=16"});
  const auto& origins = traced.origins;
  EXPECT_EQ(origins.size(), all_keys().size());
  EXPECT_EQ(origins.at("data.train"), path.string() + ":2");
  EXPECT_EQ(origins.at("training.skip_nonfinite"), path.string() + ":5");
  EXPECT_EQ(origins.at("training.steps"), "command line") << "the later one counts";
  EXPECT_EQ(origins.at("optimizer.lr"), "command line");
  EXPECT_EQ(origins.at("run.seed"), "default");
  EXPECT_EQ(origins.at("model.num_key_value_heads"), "as num_attention_heads");
  EXPECT_EQ(traced.config.model.num_key_value_heads, 16);
}

TEST(Origins, TellDefaultsThatAnotherKeyDecides) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("c.toml", kTrain + "[optimizer]\nname = \"sgd\"\n");
  const TracedConfig sgd = trace_config(path, {"training.global_batch_size=8"});
  EXPECT_EQ(sgd.origins.at("optimizer.weight_decay"), "default of sgd");
  EXPECT_NE(to_toml(sgd).find("weight_decay = 0.0 "), std::string::npos) << to_toml(sgd);
  EXPECT_EQ(sgd.origins.at("training.gradient_accumulation_steps"), "as global_batch_size");
  const TracedConfig adamw = trace_config(path, {"optimizer.name=adamw"});
  EXPECT_NE(to_toml(adamw).find("weight_decay = 0.1 "), std::string::npos);
  EXPECT_EQ(optim::weight_decay_of(trace_config(path, {"optimizer.weight_decay=0.2"}).config.optimizer), 0.2);
}

TEST(Origins, StandBehindValuesAndLeaveTheTextToml) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("odd\n[name.toml", kTrain + "[run]\nname = \"#1\"\n");
  const TracedConfig traced = trace_config(path, {"training.steps=7"});
  const std::string text = to_toml(traced);
  EXPECT_NE(text.find("  # default\n"), std::string::npos);
  EXPECT_NE(text.find("steps = 7"), std::string::npos);
  EXPECT_NE(text.find("  # command line\n"), std::string::npos);
  EXPECT_EQ(to_toml(parse_config(text, "printed.toml")), to_toml(traced.config)) << text;
}

}  // namespace
}  // namespace fsdp::config
