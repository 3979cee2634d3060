#include "checkpoint/hugging_face_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "nn/families.h"
#include "support/checkpoint_fixtures.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HuggingFaceConfig, HasTheKeysOfALlama) {
  nn::ModelOptions options;
  options.num_key_value_heads = 2;
  options.rope_theta = 5e5;
  auto config = hugging_face_config(options);
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["rope_theta"], 5e5);
  EXPECT_EQ(config["hidden_size"], 256);
  EXPECT_FALSE(config["tie_word_embeddings"]);
}

TEST(HuggingFaceConfig, HasTheKeysOfAGpt2) {
  nn::ModelOptions options;
  options.architecture = "gpt2";
  options.tie_word_embeddings = true;
  options.max_position_embeddings = 77;
  auto config = hugging_face_config(options);
  EXPECT_EQ(config["architectures"][0], "GPT2LMHeadModel");
  EXPECT_EQ(config["n_positions"], 77);
  EXPECT_EQ(config["n_inner"], 688);
  EXPECT_EQ(config["activation_function"], "gelu_new");
  EXPECT_TRUE(config["tie_word_embeddings"]);
  EXPECT_FALSE(config.contains("rope_theta"));
}

TEST(HuggingFaceConfig, ListsTheWeightsOfTheModelsWithTheirShapes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool tied : {false, true}) {
      nn::ModelOptions options = testing::tiny_options(architecture);
      options.tie_word_embeddings = tied;
      auto model = nn::make_decoder(options);
      std::map<std::string, std::vector<int64_t>> shapes;
      std::set<const void*> seen;
      for (const auto& parameter : model->named_parameters()) {
        if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
        shapes[parameter.key()] = parameter.value().sizes().vec();
      }
      EXPECT_EQ(nn::weight_shapes(options), shapes) << architecture << " tied " << tied;
    }
  }
}

TEST(HuggingFaceConfig, IsReadAsItIsWritten) {
  for (const char* architecture : {"llama", "gpt2"}) {
    nn::ModelOptions options = testing::tiny_options(architecture);
    options.tie_word_embeddings = true;
    options.rms_norm_eps = 3e-6;
    options.layer_norm_epsilon = 4e-6;
    options.rope_theta = 5e5;
    nlohmann::json config = hugging_face_config(options);
    EXPECT_EQ(hugging_face_config(options_from_hugging_face(config, "x")), config) << architecture;
  }
}

/// One of each family that is a llama with other settings.
std::map<std::string, nn::ModelOptions> families() {
  std::map<std::string, nn::ModelOptions> families;
  for (const char* name : {"qwen2", "mistral", "biased", "llama3", "linear", "wide", "geglu"}) {
    families[name] = testing::tiny_options();
  }
  families["qwen2"].qkv_bias = true;
  families["mistral"].sliding_window = 12;
  families["biased"].attention_bias = families["biased"].mlp_bias = true;
  nn::ModelOptions& llama3 = families["llama3"];
  llama3.rope_type = "llama3";
  llama3.rope_factor = 8;
  llama3.rope_original_length = 6;
  families["linear"].rope_type = "linear";
  families["linear"].rope_factor = 2.5;
  families["wide"].head_dim = 10;
  families["geglu"].hidden_act = nn::Activation::kGeluTanh;
  for (const std::string& name : testing::family_names()) {
    if (!families.contains(name)) families[name] = testing::family_options(name);
  }
  return families;
}

TEST(HuggingFaceConfig, OfEachFamilyIsReadAsItIsWritten) {
  for (const auto& [name, options] : families()) {
    const nlohmann::json config = hugging_face_config(options);
    const bool is_llama = options.architecture == "llama" && name != "qwen2" && name != "mistral";
    EXPECT_EQ(config["model_type"], is_llama ? "llama" : name);
    const nn::ModelOptions read = options_from_hugging_face(config, "x");
    EXPECT_EQ(hugging_face_config(read), config) << name;
    EXPECT_EQ(read.qkv_bias, options.qkv_bias) << name;
    EXPECT_EQ(read.attention_bias, options.attention_bias) << name;
    EXPECT_EQ(read.sliding_window, options.sliding_window) << name;
    EXPECT_EQ(read.rope_type, options.rope_type) << name;
    EXPECT_EQ(read.rope_original_length, name == "llama3" ? 6 : 8192) << name;
    EXPECT_EQ(read.head_dim, options.head_dim) << name;
    EXPECT_EQ(read.architecture, options.architecture) << name;
    EXPECT_EQ(read.sliding_window_pattern, options.sliding_window_pattern) << name;
    EXPECT_EQ(read.no_rope_layer_interval, options.no_rope_layer_interval) << name;
    EXPECT_EQ(read.query_pre_attn_scalar, options.query_pre_attn_scalar) << name;
    EXPECT_EQ(read.attn_logit_softcapping, options.attn_logit_softcapping) << name;
    EXPECT_EQ(read.final_logit_softcapping, options.final_logit_softcapping) << name;
    EXPECT_EQ(read.rope_local_base_freq, options.rope_local_base_freq) << name;
    EXPECT_EQ(read.partial_rotary_factor, options.partial_rotary_factor) << name;
    EXPECT_EQ(read.use_parallel_residual, options.use_parallel_residual) << name;
    EXPECT_EQ(read.layer_norm_epsilon, options.layer_norm_epsilon) << name;
    EXPECT_EQ(read.num_experts, options.num_experts) << name;
    EXPECT_EQ(read.num_experts_per_tok, options.num_experts_per_tok) << name;
    EXPECT_EQ(read.moe_intermediate_size, options.moe_intermediate_size) << name;
    EXPECT_EQ(read.decoder_sparse_step, options.decoder_sparse_step) << name;
  }
}

TEST(HuggingFaceConfig, ListsTheWeightsOfEachFamilyWithTheirShapes) {
  for (const auto& [name, options] : families()) {
    auto model = nn::make_decoder(options);
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& parameter : model->named_parameters()) {
      if (options.tie_word_embeddings && parameter.key() == "lm_head.weight") continue;
      shapes[parameter.key()] = parameter.value().sizes().vec();
    }
    EXPECT_EQ(nn::weight_shapes(options), shapes) << name;
  }
}

TEST(HuggingFaceConfig, TakesARotaryScalingInBothPlaces) {
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

TEST(HuggingFaceConfig, KnowsTheWindowsOfMistralAndQwen2) {
  EXPECT_EQ(options_from_hugging_face({{"model_type", "mistral"}}, "x").sliding_window, 4096);
  EXPECT_EQ(
      options_from_hugging_face({{"model_type", "mistral"}, {"sliding_window", nullptr}}, "x").sliding_window,
      0);
  EXPECT_EQ(
      options_from_hugging_face({{"model_type", "qwen2"}, {"sliding_window", 4096}}, "x").sliding_window, 0);
  EXPECT_EQ(testing::error_of([] {
              options_from_hugging_face({{"model_type", "qwen2"}, {"use_sliding_window", true}}, "x");
            }).first,
            util::ErrorKind::kCheckpoint);
}

TEST(HuggingFaceConfig, ReadsTheWindowsOfGemma) {
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
    EXPECT_EQ(kind, util::ErrorKind::kCheckpoint) << wrong;
    EXPECT_THAT(text, HasSubstr("\"layer_types\""));
  }
}

TEST(HuggingFaceConfig, ReadsTheAnglesOfGemmaOldAndNew) {
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
TEST(HuggingFaceConfig, ReadsExpertsUnderBothNames) {
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

TEST(HuggingFaceConfig, RefusesByNameWhatAFamilyLacks) {
  const std::pair<nlohmann::json, const char*> wrong[] = {
      {{{"model_type", "qwen3"}, {"use_sliding_window", true}}, "\"use_sliding_window\" must be false"},
      {{{"model_type", "phi3"}, {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}}}},
       "\"type\" must be \"default\", the only one supported for this model, but is \"longrope\""},
      {{{"model_type", "gemma3_text"}, {"attn_logit_softcapping", 50}}, "a soft cap of attention"},
      {{{"model_type", "gemma2"}, {"use_bidirectional_attention", true}}, "\"use_bidirectional_attention\""},
      {{{"model_type", "smollm3"}, {"num_hidden_layers", 3}, {"no_rope_layers", {0, 1, 1}}},
       "\"no_rope_layers\""},
      {{{"model_type", "gemma3"}}, "it reads images, and its text model, gemma3_text, is a part of it"},
      {{{"model_type", "qwen3_moe"}, {"mlp_only_layers", {0}}}, "\"mlp_only_layers\" must be []"},
      {{{"model_type", "mixtral"}, {"router_jitter_noise", 0.1}}, "noise in the router's input"},
      {{{"model_type", "mixtral"}, {"num_experts_per_tok", 9}}, "at most \"num_experts\", 8"},
      {{{"model_type", "qwen3_moe"}, {"num_experts", 9000}}, "at most 200000 in all 24 layers"},
      {{{"model_type", "qwen3"}, {"num_experts", 4}}, "experts"},
      {{{"model_type", "llama"}, {"query_pre_attn_scalar", 256}}, "a custom scale of attention"}};
  for (const auto& [config, expected] : wrong) {
    const auto [kind, text] = testing::error_of([&] { options_from_hugging_face(config, "x"); });
    EXPECT_EQ(kind, util::ErrorKind::kCheckpoint) << config;
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

TEST(HuggingFaceConfig, HasTheDefaultsOfTransformers) {
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

TEST(HuggingFaceConfig, OfAModelThatWouldComputeSomethingElseIsRefused) {
  const std::pair<const char*, nlohmann::json> wrong[] = {
      {"model_type", "qwen2_moe"},
      {"model_type", nullptr},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0}}},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}},
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
    EXPECT_EQ(kind, util::ErrorKind::kCheckpoint) << key << " " << value;
    EXPECT_THAT(text, HasSubstr("there/config.json"));
  }
  nlohmann::json gpt2 = hugging_face_config(testing::tiny_options("gpt2"));
  gpt2["activation_function"] = "relu";
  EXPECT_THAT(testing::error_of([&] { options_from_hugging_face(gpt2, "x"); }).second,
              AllOf(HasSubstr("\"activation_function\""), HasSubstr("gelu_new"), HasSubstr("relu")));
  EXPECT_EQ(testing::error_of([] { options_from_hugging_face(5, "x"); }).first, util::ErrorKind::kCheckpoint);
}

}  // namespace
}  // namespace fsdp::checkpoint
