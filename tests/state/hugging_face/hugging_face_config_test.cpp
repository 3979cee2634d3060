#include "state/hugging_face/hugging_face_config.h"

#include <gtest/gtest.h>

#include <set>

#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"
#include "support/checkpoint_fixtures.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

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
  std::vector<std::string> names = testing::family_names();
  for (const char* scaling : {"yarn", "longrope", "dynamic"}) names.emplace_back(scaling);
  for (const std::string& name : names) {
    if (!families.contains(name)) families[name] = testing::family_options(name);
  }
  return families;
}

TEST(HuggingFaceConfig, OfEachFamilyIsReadAsItIsWritten) {
  for (const auto& [name, options] : families()) {
    const nlohmann::json config = hugging_face_config(options);
    const bool is_type = name == "qwen2" || name == "mistral" || name == "olmo3";
    EXPECT_EQ(config["model_type"], is_type ? name : options.architecture);
    const nn::ModelOptions read = options_from_hugging_face(config, "x");
    EXPECT_EQ(hugging_face_config(read), config) << name;
    EXPECT_EQ(read.qkv_bias, options.qkv_bias) << name;
    EXPECT_EQ(read.attention_bias, options.attention_bias) << name;
    EXPECT_EQ(read.sliding_window, options.sliding_window) << name;
    EXPECT_EQ(read.rope_type, options.rope_type) << name;
    EXPECT_EQ(read.rope_original_length, options.rope_original_length) << name;
    for (const nn::RopeOption& each : nn::rope_options()) {
      EXPECT_TRUE(nn::option_rule(each.option).is_equal(read, options)) << name << " " << each.option;
    }
    EXPECT_EQ(read.attention_multiplier, options.attention_multiplier) << name;
    EXPECT_EQ(read.embedding_multiplier, options.embedding_multiplier) << name;
    EXPECT_EQ(read.residual_multiplier, options.residual_multiplier) << name;
    EXPECT_EQ(read.logits_scaling, options.logits_scaling) << name;
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

/// Families name options, keys and JSON by text, which no compiler checks.
TEST(HuggingFaceConfig, FollowsFromWhatTheFamiliesSay) {
  for (const nn::Family& family : nn::families()) {
    for (const nn::ModelType& type : family.types) {
      EXPECT_EQ(nn::find_model_type(type.name), &type) << type.name;
      EXPECT_EQ(nn::model_type_of(type.defaults), &type) << type.name;
      EXPECT_FALSE(nn::config_keys(type).empty()) << type.name;
      for (const nn::GgufKey& key : type.gguf.keys) EXPECT_NO_THROW(nn::option_rule(key.option)) << key.key;
      for (const std::string& text : {type.required, type.written, type.gguf.fixed}) {
        EXPECT_TRUE(json_object(text).is_object()) << type.name;
      }
      const nn::ModelOptions read = options_from_hugging_face({{"model_type", type.name}}, "x");
      EXPECT_EQ(read.architecture, family.architecture);
      EXPECT_EQ(hugging_face_config(read)["model_type"], type.name);
    }
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

}  // namespace
}  // namespace fsdp::checkpoint
