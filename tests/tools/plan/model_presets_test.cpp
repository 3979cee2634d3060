#include <gtest/gtest.h>

#include <map>

#include "base/util/error.h"
#include "model/families/families.h"
#include "setup/config/load.h"
#include "setup/config/presets.h"
#include "setup/config/print.h"
#include "support/decoder_outline.h"

namespace fsdp::config {
namespace {

Config with_preset(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return parse_config("[model]\npreset = \"" + name + "\"\n[data]\ntrain = [\"a.bin\"]\n", "c.toml",
                      overrides);
}

int64_t count_parameters(const nn::ModelOptions& options) {
  int64_t count = 0;
  for (const nn::OutlineParameter& parameter : testing::decoder_outline(options).parameters) {
    int64_t numel = 1;
    for (int64_t size : parameter.shape) numel *= size;
    count += numel;
  }
  return count;
}

// The published numbers: of transformers' GPT2LMHeadModel and LlamaForCausalLM, and of llama2.c.
TEST(ModelPresets, HaveThePublishedNumbersOfParameters) {
  const std::map<std::string, int64_t> published = {{"gpt2-124m", 124'439'808},
                                                    {"gpt2-350m", 354'823'168},
                                                    {"gpt2-774m", 774'030'080},
                                                    {"gpt2-1.5b", 1'557'611'200},
                                                    {"llama-15m", 15'191'712},
                                                    {"llama-110m", 109'529'856},
                                                    {"llama3-8b", 8'030'261'248},
                                                    {"llama3-70b", 70'553'706'496},
                                                    {"llama3.1-8b", 8'030'261'248},
                                                    {"llama3.1-70b", 70'553'706'496},
                                                    // Counted by the safetensors on the models' cards.
                                                    {"llama3.2-1b", 1'235'814'400},
                                                    {"llama3.2-3b", 3'212'749'824},
                                                    {"qwen2.5-0.5b", 494'032'768},
                                                    {"qwen2.5-1.5b", 1'543'714'304},
                                                    {"qwen2.5-3b", 3'085'938'688},
                                                    {"qwen2.5-7b", 7'615'616'512},
                                                    {"smollm2-135m", 134'515'008},
                                                    {"smollm2-360m", 361'821'120},
                                                    {"smollm2-1.7b", 1'711'376'384},
                                                    {"mistral-7b-v0.1", 7'241'732'096},
                                                    {"mistral-7b-v0.3", 7'248'023'552},
                                                    {"qwen3-0.6b", 596'049'920},
                                                    {"qwen3-1.7b", 1'720'574'976},
                                                    {"qwen3-4b", 4'022'468'096},
                                                    {"qwen3-8b", 8'190'735'360},
                                                    {"mixtral-8x7b", 46'702'792'704},
                                                    {"qwen3-30b-a3b", 30'532'122'624},
                                                    {"olmo2-1b", 1'484'916'736},
                                                    {"olmo2-7b", 7'298'617'344},
                                                    {"smollm3-3b", 3'075'098'624},
                                                    {"phi3-mini-4k", 3'821'079'552},
                                                    {"phi4", 14'659'507'200},
                                                    {"gemma2-2b", 2'614'341'888},
                                                    {"gemma3-270m", 268'098'176},
                                                    {"gemma3-1b", 999'885'952},
                                                    {"pythia-160m", 162'322'944},
                                                    {"pythia-1b", 1'011'781'632},
                                                    {"pythia-1.4b", 1'414'647'808}};
  EXPECT_EQ(model_presets().size(), published.size());
  for (const ModelPreset& preset : model_presets()) {
    EXPECT_EQ(count_parameters(with_preset(preset.name).model), published.at(preset.name)) << preset.name;
  }
}

TEST(ModelPresets, GiveWayToWhatIsGiven) {
  const Config config =
      with_preset("gpt2-124m", {"model.num_hidden_layers=3", "model.num_attention_heads=6"});
  EXPECT_EQ(config.model.num_hidden_layers, 3);
  EXPECT_EQ(config.model.num_attention_heads, 6);
  EXPECT_EQ(config.model.num_key_value_heads, 6);
  EXPECT_EQ(config.model.hidden_size, 768);
  EXPECT_EQ(with_preset("llama3-8b").model.num_key_value_heads, 8);
}

TEST(ModelPresets, HaveWhatTheirFamiliesHaveBesideSizes) {
  const nn::ModelOptions llama = with_preset("llama3.2-3b").model;
  EXPECT_EQ(llama.rope_type, "llama3");
  EXPECT_EQ(llama.rope_factor, 32);
  EXPECT_EQ(llama.rope_original_length, 8192);
  EXPECT_EQ(nn::head_width(llama), 128);
  const nn::ModelOptions qwen = with_preset("qwen2.5-7b").model;
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_FALSE(qwen.tie_word_embeddings);
  EXPECT_EQ(qwen.rms_norm_eps, 1e-6);
  EXPECT_EQ(with_preset("mistral-7b-v0.1").model.sliding_window, 4096);
  EXPECT_EQ(with_preset("mistral-7b-v0.3").model.sliding_window, 0);
}

TEST(ModelPresets, AreWrittenOutInTheResolvedConfig) {
  const Config config = with_preset("llama-15m");
  EXPECT_EQ(differing_keys(config, parse_config(to_toml(config), "resolved.toml")),
            std::vector<std::string>{});
}

TEST(ModelPresets, OfOtherNamesAreRefusedWithTheNearest) {
  try {
    with_preset("gpt2-125m");
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_NE(std::string(error.what()).find("gpt2-124m"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fsdp::config
