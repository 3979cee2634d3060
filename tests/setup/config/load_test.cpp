#include "setup/config/load.h"

#include <gtest/gtest.h>

#include "setup/config/config_text.h"
#include "setup/config/print.h"
#include "support/source_folder.h"

namespace fsdp::config {
namespace {

Config parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "c.toml", overrides);
}

TEST(Load, AFileThatOnlyNamesItsDataHasTheDefaults) {
  Config expected;
  expected.data.train = {"a.bin"};
  EXPECT_EQ(differing_keys(expected, parsed(kTrain)), std::vector<std::string>());
}

TEST(Load, ReadsEveryKeyOfTheDesign) {
  Config config = parsed(R"(
[run]
name = "shakespeare"
output_dir = "checkpoints/shakespeare"    # checkpoints, metrics.jsonl, resolved config
seed = 1234

[model]
architecture = "llama"
vocab_size = 256
hidden_size = 256
intermediate_size = 688
num_hidden_layers = 4
num_attention_heads = 8
num_key_value_heads = 8
max_position_embeddings = 1024
rope_theta = 10000.0
rms_norm_eps = 1e-5
tie_word_embeddings = false
init_from = ""

[data]
train = ["data/shakespeare.bin"]
validation = []
tokenizer = "bytes"
sequence_length = 256
micro_batch_size = 4                      # sequences a rank a micro-batch
shuffle = true

[training]
steps = 200
gradient_accumulation_steps = 1
max_grad_norm = 1.0
fused_kernels = true

[optimizer]
name = "adamw"
lr = 3e-4
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
no_decay = []

[lr_scheduler]
name = "constant"
warmup_steps = 0

[fsdp]
strategy = "full_shard"
layout = "flat"
min_num_params = 100_000
reshard_after_forward = true
forward_prefetch = "implicit"
backward_prefetch = "pre"
limit_all_gathers = true
cpu_offload = false
move_grads_to_cpu = false

[mixed_precision]
param_dtype = "float32"
reduce_dtype = "float32"
buffer_dtype = "param_dtype"

[activation_checkpointing]
mode = "none"

[mesh]
dcn = 1
data = -1
model = 1

[comm]
backend = "auto"
timeout_seconds = 60

[checkpoint]
interval_steps = 100
keep_last = 3
kind = "sharded"
asynchronous = false
resume = "auto"

[logging]
interval_steps = 1
trace_communication = false
)");
  Config expected;
  expected.run.name = "shakespeare";
  expected.run.output_dir = "checkpoints/shakespeare";
  expected.data.train = {"data/shakespeare.bin"};
  EXPECT_EQ(differing_keys(expected, config), std::vector<std::string>());
}

TEST(Load, EveryShippedConfigurationIsValid) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(testing::source_folder() + "/configs")) {
    if (file.path().extension() != ".toml") continue;
    SCOPED_TRACE(file.path().string());
    EXPECT_FALSE(load_config(file.path()).data.train.empty());
    ++count;
  }
  EXPECT_GE(count, 1);
}

TEST(Load, TakesNamesOfEnumsWithoutQuotesOnTheCommandLine) {
  EXPECT_EQ(parsed(kTrain, {"comm.backend=gloo"}).comm.backend, comm::Backend::kGloo);
  EXPECT_EQ(parsed(kTrain, {"comm.backend=\"shm\""}).comm.backend, comm::Backend::kShm);
}

TEST(Load, TakesIntegersForFloatsAndSeparatorsAndBases) {
  Config config = parsed(kTrain + "[optimizer]\nlr = 1\nbetas = [0, 0.5]\n[fsdp]\nmin_num_params = +1_000\n" +
                         "[run]\nseed = 0xFF\n[comm]\ntimeout_seconds = 1_0.5\n");
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.0, 0.5}));
  EXPECT_EQ(config.fsdp.min_num_params, 1000);
  EXPECT_EQ(config.run.seed, 255);
  EXPECT_EQ(config.comm.timeout_seconds, 10.5);
}

TEST(Load, TakesFloatsThatAreWholeNumbersForIntegers) {
  const Config config =
      parsed(kTrain + "[fsdp]\nmin_num_params = 1e6\n[training]\nsteps = 2.5e1\n", {"run.seed=7.0"});
  EXPECT_EQ(config.fsdp.min_num_params, 1'000'000);
  EXPECT_EQ(config.training.steps, 25);
  EXPECT_EQ(config.run.seed, 7);
}

TEST(Load, TakesABoolForAWordThatMayBeTrueOrFalse) {
  const std::string half = kTrain + "[mixed_precision]\nparam_dtype = \"float16\"\n";
  const Config config = parsed(half + "keep_low_precision_shards = true\n", {"loss_scaler.enabled=false"});
  EXPECT_EQ(config.mixed_precision.keep_low_precision_shards, KeepChoice::kTrue);
  EXPECT_EQ(config.loss_scaler.enabled, optim::ScalerChoice::kFalse);
  const std::string error = usage_error_of([] { parsed(kTrain + "[training]\ndevice = true\n"); });
  EXPECT_NE(error.find("training.device must be one of"), std::string::npos) << error;
}

TEST(Load, TakesAStringForAListOfOneString) {
  const Config config = parsed("[data]\ntrain = \"a.bin\"\n[optimizer]\nno_decay = \"*.bias\"\n",
                               {"data.validation=\"v.bin\"", "fsdp.leaf_stages=\"block\""});
  EXPECT_EQ(config.data.train, std::vector<std::string>{"a.bin"});
  EXPECT_EQ(config.data.validation, std::vector<std::string>{"v.bin"});
  EXPECT_EQ(config.optimizer.no_decay, std::vector<std::string>{"*.bias"});
  EXPECT_EQ(config.fsdp.leaf_stages, std::vector<std::string>{"block"});
  const std::string error = usage_error_of([] { parsed("[data]\ntrain = \"\"\n"); });
  EXPECT_NE(error.find("data.train must be a list of at least one non-empty string"), std::string::npos)
      << error;
}

TEST(Load, TakesWindowsLineEndsByteOrderMarksAndDottedKeys) {
  Config config = parsed("\xEF\xBB\xBF[data]\r\ntrain = [\r\n  \"a.bin\", # one\r\n  \"b.bin\",\r\n]\r\n");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.bin", "b.bin"}));
  EXPECT_EQ(parsed("data.train = ['a.bin']\ntraining = { steps = 3 }").training.steps, 3);
}

TEST(Load, KeyValueHeadsFollowTheHeadsUntilTheyAreGiven) {
  EXPECT_EQ(parsed(kTrain + "[model]\nnum_attention_heads = 4\n").model.num_key_value_heads, 4);
  EXPECT_EQ(parsed(kTrain + "[model]\narchitecture = \"gpt2\"\nnum_attention_heads = 4\n")
                .model.num_key_value_heads,
            4);
  EXPECT_EQ(parsed(kTrain + "[model]\nnum_attention_heads = 4\nnum_key_value_heads = 2\n")
                .model.num_key_value_heads,
            2);
}

TEST(Load, FusedOptimizersFollowFusedKernels) {
  EXPECT_TRUE(parsed(kTrain).optimizer.fused);
  EXPECT_FALSE(parsed(kTrain, {"training.fused_kernels=false"}).optimizer.fused);
}

TEST(Overrides, ChangeTheFileInTheirOrder) {
  Config config = parsed(kTrain + "[training]\nsteps = 10\n",
                         {"training.steps=20", "training.steps = 30", "data.train=[\"x\", 'y']",
                          "optimizer.betas=[0.5, 0.5]", "data.shuffle=false", "optimizer.lr=1"});
  EXPECT_EQ(config.training.steps, 30);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.5, 0.5}));
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.optimizer.lr, 1.0);
}

TEST(Overrides, TextNeedsNoQuotes) {
  auto name = [](const std::string& value) { return parsed(kTrain, {"run.name=" + value}).run.name; };
  EXPECT_EQ(name("trial"), "trial");
  EXPECT_EQ(name("123"), "123");
  EXPECT_EQ(name("true"), "true");
  EXPECT_EQ(name("a/b c=d#e"), "a/b c=d#e");
  EXPECT_EQ(name("\"with \\\"quotes\\\"\""), "with \"quotes\"");
  EXPECT_EQ(name("'it'"), "it");
  EXPECT_EQ(parsed(kTrain + "[model]\ninit_from = \"w\"\n", {"model.init_from="}).model.init_from, "");
}

}  // namespace
}  // namespace fsdp::config
