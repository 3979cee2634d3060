// Exported weights in Hugging Face's transformers: the logits of LlamaForCausalLM and GPT2LMHeadModel are
// ours. Compared with committed logits (see make_figures) everywhere, and with transformers itself where the
// Python in FSDP_TEST_PYTHON (default: python3) has it.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "e2e/programs.h"
#include "nn/options.h"
#include "support/tiny_models.h"
#include "train/build_model.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::parity {
namespace {

struct Case {
  std::string name, class_name;
  nn::ModelOptions model;
  std::vector<std::string> export_flags;
};

/// The models of transformers_*.txt.
Case case_of(const std::string& name) {
  Case c{
      .name = name, .class_name = "LlamaForCausalLM", .model = testing::tiny_options(), .export_flags = {}};
  c.model.vocab_size = 40;
  c.model.hidden_size = 32;
  c.model.num_attention_heads = 4;
  c.model.num_key_value_heads = 2;
  c.model.intermediate_size = 48;
  if (name == "llama_tied_split") {
    c.model.tie_word_embeddings = true;
    c.export_flags = {"--max-shard-size", "10KB"};
  }
  if (name == "gpt2") {
    c.class_name = "GPT2LMHeadModel";
    c.model.architecture = "gpt2";
    c.model.num_key_value_heads = 4;
    c.model.intermediate_size = 128;
    c.model.tie_word_embeddings = true;
  }
  return c;
}

class Transformers : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs one step that changes nothing on two processes, and exports what was saved.
  void SetUp() override {
    const nn::ModelOptions& model = case_.model;
    testing::write_token_file(folder_ / "train.bin", 2000, model.vocab_size);
    auto number = [](const char* key, auto value) { return util::concat("model.", key, "=", value); };
    auto result = e2e::launch_training(
        2, std::string(FSDP_SOURCE_DIR) + "/tests/parity/llama.toml",
        {"model.architecture=" + model.architecture, number("vocab_size", model.vocab_size),
         number("hidden_size", model.hidden_size), number("intermediate_size", model.intermediate_size),
         number("num_hidden_layers", model.num_hidden_layers),
         number("num_attention_heads", model.num_attention_heads),
         number("num_key_value_heads", model.num_key_value_heads),
         number("max_position_embeddings", model.max_position_embeddings),
         number("initializer_range", model.initializer_range),
         number("tie_word_embeddings", model.tie_word_embeddings ? "true" : "false"),
         "data.train=[\"" + (folder_ / "train.bin").string() + "\"]", "data.sequence_length=16",
         "training.steps=1", "optimizer.lr=0", "fsdp.min_num_params=1000", "checkpoint.save_at_end=true",
         "run.output_dir=" + (folder_ / "out").string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> command = {e2e::program("fsdp-ckpt"), "export", (folder_ / "out").string(),
                                        exported()};
    command.insert(command.end(), case_.export_flags.begin(), case_.export_flags.end());
    result = testing::run(command);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  std::string exported() const { return (folder_ / "exported").string(); }
  std::string committed() const {
    return std::string(FSDP_SOURCE_DIR) + "/tests/parity/transformers_" + case_.name + ".txt";
  }

  /// Of the exported folder, read again.
  at::Tensor our_logits() const {
    nn::ModelOptions options = case_.model;
    options.init_from = exported();
    auto model = train::build_model(options, 1);
    at::NoGradGuard no_grad;
    return model->forward(testing::token_rows(0, 2, 11, options.vocab_size)).flatten();
  }

  void expect_ours(const std::string& text, const std::string& whose) {
    std::vector<float> values;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line[0] != '#') values.push_back(std::stof(line));
    }
    at::Tensor ours = our_logits();
    ASSERT_EQ(static_cast<int64_t>(values.size()), ours.numel());
    at::Tensor theirs = at::from_blob(values.data(), {ours.numel()});
    double difference = (ours - theirs).abs().max().item<double>();
    double largest = theirs.abs().max().item<double>();
    std::cout << case_.name << ": largest difference from " << whose << " " << difference
              << " in logits up to " << largest << std::endl;
    EXPECT_GT(largest, 0.1);
    EXPECT_LE(difference, 2e-5 * largest);
  }

  Case case_ = case_of(GetParam());
  testing::TemporaryFolder folder_;
};

TEST_P(Transformers, TheExportGivesTheLogitsThatTransformersGave) {
  expect_ours(util::read_file(committed()), "the committed logits");
}

TEST_P(Transformers, TheExportLoadsAndGivesTheSameLogits) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  std::string python = chosen == nullptr ? "python3" : chosen;
  if (testing::run({"/usr/bin/env", python, "-c", "import transformers"}).exit_code != 0) {
    GTEST_SKIP() << python << " has no transformers; set FSDP_TEST_PYTHON to one that has";
  }
  auto result = testing::run(
      {"/usr/bin/env", python, std::string(FSDP_SOURCE_DIR) + "/tests/parity/transformers_reference.py",
       exported(), "--expect", case_.class_name},
      {.timeout_seconds = 300});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  if (std::getenv("FSDP_TEST_RECORD") != nullptr) std::ofstream(committed()) << result.out;
  expect_ours(result.out, "transformers");
}

INSTANTIATE_TEST_SUITE_P(Models, Transformers, ::testing::Values("llama", "llama_tied_split", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp::parity
