// options_from_hugging_face(): what is read of config.json, and what is refused in it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/families/families.h"
#include "model/families/family.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/checkpoint_fixtures.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HuggingFaceConfigReader, TakesARotaryScalingInBothPlaces) {
  const nlohmann::json scaling = {{"rope_type", "llama3"},
                                  {"factor", 32.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 8192},
                                  {"rope_theta", 5e5}};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nn::ModelOptions read = options_from_hugging_face({{"model_type", "llama"}, {key, scaling}}, "x");
    EXPECT_EQ(read.rope_type, "llama3");
    EXPECT_EQ(read.rope_factor, 32);
    EXPECT_EQ(read.rope_theta, 5e5);
  }
  EXPECT_EQ(options_from_hugging_face(
                {{"model_type", "llama"}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, "x")
                .rope_factor,
            2);
}

TEST(HuggingFaceConfigReader, ReadsYarnAsQwenWritesIt) {
  const nlohmann::json scaling = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const nn::ModelOptions read = options_from_hugging_face(
      {{"model_type", "qwen2"}, {"rope_theta", 1e6}, {"rope_scaling", scaling}}, "x");
  EXPECT_EQ(read.rope_type, "yarn");
  EXPECT_EQ(read.rope_factor, 4);
  EXPECT_EQ(read.rope_original_length, 32768);
  EXPECT_EQ(read.rope_beta_fast, 32);
  EXPECT_EQ(read.rope_beta_slow, 1);
  EXPECT_TRUE(read.rope_truncate);
  const nlohmann::json all = {
      {"rope_type", "yarn"}, {"factor", nullptr},       {"original_max_position_embeddings", 4096},
      {"beta_fast", 16},     {"beta_slow", 2},          {"mscale", 0.7},
      {"mscale_all_dim", 1}, {"attention_factor", 1.3}, {"truncate", false}};
  const nn::ModelOptions each = options_from_hugging_face(
      {{"model_type", "qwen3"}, {"max_position_embeddings", 32768}, {"rope_parameters", all}}, "x");
  EXPECT_EQ(each.rope_factor, 8);
  EXPECT_EQ(each.rope_beta_fast, 16);
  EXPECT_EQ(each.rope_beta_slow, 2);
  EXPECT_EQ(each.rope_mscale, 0.7);
  EXPECT_EQ(each.rope_mscale_all_dim, 1);
  EXPECT_EQ(each.rope_attention_factor, 1.3);
  EXPECT_FALSE(each.rope_truncate);
  // transformers takes max_position_embeddings for a missing length.
  EXPECT_EQ(options_from_hugging_face({{"model_type", "qwen3"},
                                       {"max_position_embeddings", 2048},
                                       {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}}},
                                      "x")
                .rope_original_length,
            2048);
}

TEST(HuggingFaceConfigReader, ReadsLongropeAsPhiWritesIt) {
  for (const char* type : {"longrope", "su", "yarn"}) {  // older files of Phi-3 have the older names
    for (const auto& [share, count] : {std::pair(1.0, 48), {0.75, 36}}) {
      nlohmann::json config = {{"model_type", "phi3"},
                               {"hidden_size", 3072},
                               {"num_attention_heads", 32},
                               {"max_position_embeddings", 131072},
                               {"original_max_position_embeddings", 4096},
                               {"rope_scaling",
                                {{"type", type},
                                 {"short_factor", std::vector<double>(static_cast<size_t>(count), 1.25)},
                                 {"long_factor", std::vector<double>(static_cast<size_t>(count), 50)}}}};
      if (share < 1) config["partial_rotary_factor"] = share;
      const nn::ModelOptions read = options_from_hugging_face(config, "x");
      EXPECT_EQ(read.rope_type, "longrope");
      EXPECT_EQ(read.rope_original_length, 4096);
      EXPECT_EQ(read.rope_factor, 32);
      EXPECT_EQ(read.rope_short_factor, std::vector<double>(static_cast<size_t>(count), 1.25));
      EXPECT_EQ(read.rope_long_factor, std::vector<double>(static_cast<size_t>(count), 50));
      const nlohmann::json written = hugging_face_config(read);
      EXPECT_EQ(written["original_max_position_embeddings"], 4096);
      EXPECT_EQ(hugging_face_config(options_from_hugging_face(written, "x")), written);
    }
  }
}

/// transformers gives the scaling of Olmo 3 to layers without a window.
TEST(HuggingFaceConfigReader, ReadsTheAnglesOfOlmo3OldAndNew) {
  const nlohmann::json yarn = {
      {"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}};
  nlohmann::json full = yarn;
  full["rope_theta"] = 5e5;
  for (nlohmann::json config :
       {nlohmann::json{{"rope_theta", 5e5}, {"rope_scaling", yarn}},
        nlohmann::json{{"rope_parameters",
                        {{"full_attention", full},
                         {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}}}}) {
    config["model_type"] = "olmo3";
    const nn::ModelOptions read = options_from_hugging_face(config, "x");
    EXPECT_EQ(read.architecture, "olmo2");
    EXPECT_EQ(read.sliding_window_pattern, 4);
    EXPECT_EQ(read.rope_type, "yarn");
    EXPECT_EQ(read.rope_factor, 8);
    EXPECT_EQ(read.rope_theta, 5e5);
    EXPECT_EQ(read.rope_local_base_freq, 5e5);
  }
}

/// transformers 5 writes the angles of most models so. The family of OLMo 2 also has models with two kinds of
/// layers.
TEST(HuggingFaceConfigReader, ReadsRotaryParametersOfAllLayersForEachTypeWithoutWindowsOfItsOwnAngles) {
  for (const nn::Family& family : nn::families()) {
    for (const nn::ModelType& type : family.types) {
      const bool has_two_kinds = family.has("rope_local_base_freq") &&
                                 std::ranges::count(type.without_key, "rope_local_base_freq") == 0;
      if (!family.is_rotary() || has_two_kinds) continue;
      const nlohmann::json config = {
          {"model_type", type.name},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 12345.0}}}};
      EXPECT_EQ(options_from_hugging_face(config, "x").rope_theta, 12345) << type.name;
    }
  }
}

TEST(HuggingFaceConfigReader, KnowsTheWindowsOfMistralAndQwen2) {
  EXPECT_EQ(options_from_hugging_face({{"model_type", "mistral"}}, "x").sliding_window, 4096);
  EXPECT_EQ(
      options_from_hugging_face({{"model_type", "mistral"}, {"sliding_window", nullptr}}, "x").sliding_window,
      0);
  EXPECT_EQ(
      options_from_hugging_face({{"model_type", "qwen2"}, {"sliding_window", 4096}}, "x").sliding_window, 0);
  EXPECT_EQ(testing::error_of([] {
              options_from_hugging_face({{"model_type", "qwen2"}, {"use_sliding_window", true}}, "x");
            }).first,
            ErrorKind::kCheckpoint);
}

TEST(HuggingFaceConfigReader, ReadsTheWindowsOfGemma) {
  const auto gemma = [](const nlohmann::json& more) {
    nlohmann::json config = {{"model_type", "gemma3_text"}, {"num_hidden_layers", 6}};
    config.update(more);
    return options_from_hugging_face(config, "x");
  };
  const std::string full = "full_attention", local = "sliding_attention";
  EXPECT_EQ(gemma(nlohmann::json::object()).sliding_window_pattern, 6);
  EXPECT_EQ(gemma({{"sliding_window_pattern", 3}}).sliding_window_pattern, 3);
  EXPECT_EQ(gemma({{"layer_types", {local, full, local, full, local, full}}}).sliding_window_pattern, 2);
  EXPECT_EQ(gemma({{"layer_types", std::vector(6, local)}}).sliding_window_pattern, 0);
  EXPECT_EQ(gemma({{"layer_types", std::vector(6, full)}}).sliding_window, 0);
  for (const nlohmann::json& wrong :
       {nlohmann::json{local, full, local, local, local, full},
        nlohmann::json{full, local, full, local, full, local}, nlohmann::json{local, full}, nlohmann::json(7),
        nlohmann::json{local, local, local, local, local, "chunked"}}) {
    const auto [kind, text] = testing::error_of([&] { gemma({{"layer_types", wrong}}); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << wrong;
    EXPECT_THAT(text, HasSubstr("\"layer_types\""));
  }
}

TEST(HuggingFaceConfigReader, ReadsTheAnglesOfGemmaOldAndNew) {
  const nlohmann::json old = {{"rope_theta", 5e5},
                              {"rope_local_base_freq", 2e4},
                              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}};
  const nlohmann::json now = {
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5e5}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}}};
  for (nlohmann::json config : {old, now}) {
    config["model_type"] = "gemma3_text";
    const nn::ModelOptions read = options_from_hugging_face(config, "x");
    EXPECT_EQ(read.rope_theta, 5e5);
    EXPECT_EQ(read.rope_local_base_freq, 2e4);
    EXPECT_EQ(read.rope_type, "linear");
    EXPECT_EQ(read.rope_factor, 8);
  }
}

/// transformers 5 writes num_local_experts where published files of Qwen3-MoE have num_experts.
TEST(HuggingFaceConfigReader, ReadsExpertsUnderBothNames) {
  for (const char* type : {"mixtral", "qwen3_moe"}) {
    for (const char* key : {"num_experts", "num_local_experts"}) {
      const nlohmann::json config = {
          {"model_type", type},         {key, 12},
          {"num_experts_per_tok", 3},   {"router_aux_loss_coef", 0.02},
          {"router_jitter_noise", 0.0}, {"mlp_only_layers", nlohmann::json::array()}};
      const nn::ModelOptions read = options_from_hugging_face(config, "x");
      EXPECT_EQ(read.num_experts, 12) << type << key;
      EXPECT_EQ(read.num_experts_per_tok, 3) << type << key;
      EXPECT_EQ(read.router_aux_loss_coef, 0.02) << type << key;
    }
  }
  EXPECT_EQ(hugging_face_config(testing::family_options("mixtral"))["num_local_experts"], 4);
  EXPECT_EQ(hugging_face_config(testing::family_options("qwen3_moe"))["num_experts"], 5);
}

TEST(HuggingFaceConfigReader, HasTheDefaultsOfTransformers) {
  auto gpt2 = options_from_hugging_face({{"model_type", "gpt2"}, {"n_inner", nullptr}, {"n_ctx", 1024}}, "x");
  EXPECT_EQ(gpt2.hidden_size, 768);
  EXPECT_EQ(gpt2.intermediate_size, 3072);
  EXPECT_TRUE(gpt2.tie_word_embeddings);
  auto llama = options_from_hugging_face({{"model_type", "llama"}, {"num_attention_heads", 64}}, "x");
  EXPECT_EQ(llama.num_key_value_heads, 64);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_EQ(options_from_hugging_face({{"model_type", "llama"},
                                       {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e4}}}},
                                      "x")
                .rope_theta,
            7e4);
}

TEST(HuggingFaceConfigReader, OfAModelThatWouldComputeSomethingElseIsRefused) {
  const std::pair<const char*, nlohmann::json> wrong[] = {
      {"model_type", "qwen2_moe"},
      {"model_type", nullptr},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0}}},
      {"rope_scaling", {{"type", "dynamic"}}},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 0.5}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", "2"}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_slow", 64}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", 1}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"attention_factor", -1.0}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"rope_theta", 1}}},
      {"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 1, 1}}}},
      {"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", "1"}}},
      {"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", {1, 1}}}},
      {"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", {1, 0, 1}}}},
      {"rope_scaling", "linear"},
      {"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}},
      {"rope_parameters", {{"rope_type", 3}}},
      {"attention_bias", 1},
      {"mlp_bias", "yes"},
      {"hidden_act", "relu"},
      {"head_dim", 0},
      {"hidden_size", 0},
      {"hidden_size", -5},
      {"hidden_size", 1.5},
      {"hidden_size", "4096"},
      {"vocab_size", 18446744073709551615ULL},
      {"rope_theta", "large"},
      {"rope_theta", 0},
      {"rope_theta", -1e4},
      {"rope_theta", 1e-320},
      {"rope_theta", 1e308},
      {"rms_norm_eps", 0},
      {"rms_norm_eps", -1},
      {"initializer_range", -0.02},
      {"num_hidden_layers", int64_t{1} << 31},
      {"num_attention_heads", 2048},
      {"max_position_embeddings", 10'000'001},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 1e308}}},
      {"rope_scaling", {{"rope_type", "default"}, {"rope_theta", -4}}},
      {"rope_scaling",
       {{"rope_type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", -4},
        {"high_freq_factor", -1},
        {"original_max_position_embeddings", 8}}},
      {"tie_word_embeddings", 1},
      {"quantization_config", {{"bits", 4}}},
  };
  for (const auto& [key, value] : wrong) {
    nlohmann::json config = hugging_face_config(testing::tiny_options());
    config[key] = value;
    auto [kind, text] = testing::error_of([&] { options_from_hugging_face(config, "there/config.json"); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << key << " " << value;
    EXPECT_THAT(text, HasSubstr("there/config.json"));
  }
  nlohmann::json gpt2 = hugging_face_config(testing::tiny_options("gpt2"));
  gpt2["activation_function"] = "relu";
  EXPECT_THAT(testing::error_of([&] { options_from_hugging_face(gpt2, "x"); }).second,
              AllOf(HasSubstr("\"activation_function\""), HasSubstr("gelu_new"), HasSubstr("relu")));
  EXPECT_EQ(testing::error_of([] { options_from_hugging_face(5, "x"); }).first, ErrorKind::kCheckpoint);
}

}  // namespace
}  // namespace fsdp::checkpoint
