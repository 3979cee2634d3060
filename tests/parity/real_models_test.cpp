// Pretrained models of other people, in the GGUF files that llama.cpp's users have. FSDP_TEST_MODELS names
// the folder that scripts/chat_example --gemma filled.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/programs.h"
#include "support/tiny_config.h"

namespace fsdp::parity {
namespace {

using namespace fsdp::testing;
using nlohmann::json;

/// Two paragraphs of Lincoln's speech at Gettysburg.
constexpr const char* kText =
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, "
    "and dedicated to the proposition that all men are created equal.\n\nNow we are engaged in a great civil war, "
    "testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great "
    "battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those "
    "who here gave their lives that that nation might live. It is altogether fitting and proper that we should do "
    "this.\n";

/// What llama.cpp (release of October 2026) computes from the model in f32, so with the values of the
/// quantised tensors and without its rounding of activations to 8 bits.
struct RealModel {
  const char* file;
  double nats_per_token;
  std::vector<int64_t> after_the_sea_is;  ///< the likeliest tokens after "The sea is"
};

const RealModel kModels[] = {
    {"SmolLM2-135M-Instruct.gguf",
     2.6175367,
     {253, 1379, 282, 11746, 4558, 284, 10288, 30, 657, 506, 253, 1379, 837, 260, 6552}},
    {"gemma-3-270m.gguf",
     0.8917319,
     {496, 1822, 1977, 531, 11540, 236764, 840, 625, 740, 577, 496, 3103, 10887, 528, 506}}};

class RealModels : public ::testing::TestWithParam<RealModel> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("FSDP_TEST_MODELS");
    if (folder == nullptr)
      GTEST_SKIP() << "set FSDP_TEST_MODELS to the folder that scripts/chat_example --gemma filled";
    example_ = folder;
    if (!std::filesystem::exists(model())) GTEST_SKIP() << "FSDP_TEST_MODELS has no " << model();
  }

  std::string model() const { return example_ / "models" / GetParam().file; }
  static ProgramResult must_run(std::vector<std::string> words, const std::filesystem::path& folder) {
    words.front() = e2e::program(words.front());
    ProgramResult result = run(words, {.working_folder = folder, .timeout_seconds = 300});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }

  std::filesystem::path example_;
  TemporaryFolder folder_;
};

TEST_P(RealModels, ComputeWhatLlamaCppDoes) {
  std::ofstream(folder_ / "text.txt") << kText;
  const json score = json::parse(
      must_run({"fsdp-generate", model(), "--score", folder_ / "text.txt", "--json"}, folder_.path()).out);
  EXPECT_NEAR(score["nats_per_token"].get<double>(), GetParam().nats_per_token, 1e-3)
      << "llama.cpp keeps keys and values in f16";
  const json text = json::parse(must_run({"fsdp-generate", model(), "--prompt", "The sea is", "--temperature",
                                          "0", "--max-new-tokens", "15", "--json"},
                                         folder_.path())
                                    .out);
  EXPECT_EQ(text["ids"].get<std::vector<int64_t>>(), GetParam().after_the_sea_is);
}

/// Thirty steps on conversations of other people.
TEST_P(RealModels, LearnFromChatsWithAndWithoutAdapters) {
  const std::string data = example_ / "data/alpaca_en_demo.json";
  std::vector<std::string> tokenize = {"fsdp-data",
                                       "tokenize",
                                       data,
                                       "--chat",
                                       "--tokenizer",
                                       model(),
                                       "--output",
                                       folder_ / "train.u32",
                                       "--validation-output",
                                       folder_ / "validation.u32",
                                       "--validation-fraction",
                                       "0.05"};
  if (std::string(GetParam().file).starts_with("gemma")) {  // a base model, without a template
    tokenize.insert(tokenize.end(), {"--chat-template", "chatml", "--spell-markers"});
  }
  must_run(tokenize, folder_.path());
  must_run({"fsdp-train", "init", "chats", "--from", model(), "--output", "chats.toml"}, folder_.path());
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{"optimizer.lr=1e-3"},
        {"optimizer.lr=2e-5", "lora.rank=0", "fsdp.param_storage=float32"}}) {
    std::vector<std::string> words = {"fsdp-launch",
                                      "--nproc-per-node",
                                      "2",
                                      "--",
                                      e2e::program("fsdp-train"),
                                      "chats.toml",
                                      "data.train=[\"train.u32\"]",
                                      "data.validation=[\"validation.u32\"]",
                                      "data.sequence_length=64",
                                      "data.max_tokens=128",
                                      "training.epochs=0",
                                      "training.steps=30",
                                      "evaluation.interval_steps=5",
                                      "evaluation.max_samples=16",
                                      "mixed_precision.param_dtype=float32",
                                      "checkpoint.interval_steps=0",
                                      "checkpoint.keep_best=false"};
    words.insert(words.end(), way.begin(), way.end());
    std::filesystem::remove_all(folder_ / "checkpoints");
    must_run(words, folder_.path());
    const auto losses = values_of(folder_ / "checkpoints/chats/metrics.jsonl", "validation_loss");
    ASSERT_GE(losses.size(), 3U);
    EXPECT_LT(losses.back(), losses.front()) << way.front();
  }
}

INSTANTIATE_TEST_SUITE_P(All, RealModels, ::testing::ValuesIn(kModels), [](const auto& info) {
  return std::string(info.param.file).starts_with("gemma") ? std::string("Gemma3") : std::string("SmolLM2");
});

}  // namespace
}  // namespace fsdp::parity
