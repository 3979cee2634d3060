// What a config.json may ask for that our models do not compute.

#include "state/hugging_face/hugging_face_unsupported.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/hugging_face/hugging_face_config.h"
#include "support/checkpoint_fixtures.h"
#include "support/log_lines.h"

namespace fsdp::checkpoint {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Of a config of this family with these keys.
std::string refusal(const char* family, const json& keys) {
  try {
    refuse_unsupported_traits(keys, *nn::find_family(family), "config.json");
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    return error.what();
  }
  return "";
}

TEST(UnsupportedTraits, AreNamedAllAtOnceWithTheirValues) {
  const std::string text = refusal(
      "llama",
      {{"embedding_multiplier", 12.0}, {"final_logit_softcapping", 30.0}, {"no_rope_layers", {1, 1, 0}}});
  EXPECT_THAT(text, StartsWith("config.json: this version cannot compute"));
  EXPECT_THAT(text, AllOf(HasSubstr("\"embedding_multiplier\": 12.0 (scaled embeddings)"),
                          HasSubstr("\"final_logit_softcapping\": 30.0 (a soft cap of logits)"),
                          HasSubstr("\"no_rope_layers\": [1,1,0] (layers without rotary positions)"),
                          EndsWith("use a program that supports these")));
  EXPECT_THAT(refusal("llama", {{"residual_multiplier", 0.2}}), EndsWith("use a program that supports it"));
}

TEST(UnsupportedTraits, AreThoseThatTheFamilyLacks) {
  const std::vector<std::pair<const char*, json>> refused = {
      {"llama", {{"partial_rotary_factor", 0.5}}},
      {"llama", {{"use_qk_norm", true}}},
      {"llama", {{"attention_chunk_size", 8192}}},
      {"llama", {{"n_routed_experts", 8}}},
      {"llama", {{"layer_types", {"full_attention", "linear_attention"}}}},
      {"phi3", {{"parallel_attn", true}}},
      {"gemma3_text", {{"attn_logit_softcapping", 50}}},
      {"llama", {{"query_pre_attn_scalar", 256}}}};
  for (const auto& [family, keys] : refused) {
    EXPECT_THAT(refusal(family, keys), HasSubstr(keys.begin().key())) << family;
  }
  EXPECT_EQ(refusal("phi3", {{"partial_rotary_factor", 0.5}}), "");
  EXPECT_EQ(refusal("gpt_neox", {{"rotary_pct", 0.25}, {"use_parallel_residual", true}}), "");
  EXPECT_EQ(refusal("gemma2", {{"attn_logit_softcapping", 50}, {"query_pre_attn_scalar", 256}}), "");
  EXPECT_EQ(refusal("smollm3", {{"no_rope_layers", {1, 1, 1, 0}}}), "");
}

TEST(UnsupportedTraits, MayBeNamedWithoutAnEffect) {
  EXPECT_EQ(refusal("llama", {{"partial_rotary_factor", 1.0},
                              {"residual_multiplier", 1},
                              {"use_qk_norm", false},
                              {"final_logit_softcapping", nullptr},
                              {"n_routed_experts", 0},
                              {"layer_types", {"full_attention", "full_attention", "full_attention"}}}),
            "");
  EXPECT_EQ(refusal("llama", {{"model_type", "mistral"}, {"layer_types", {"sliding_attention"}}}), "");
}

TEST(UnsupportedTraits, OfEndlessValuesAreCut) {
  const std::string text = refusal("llama", {{"layer_types", std::vector<std::string>(1000, "chunked")}});
  EXPECT_THAT(text, HasSubstr("..."));
  EXPECT_LT(text.size(), 300U);
}

TEST(UnsupportedTypes, AreNamedWithWhatDiffers) {
  for (const char* type :
       {"granitemoe", "gemma", "stablelm", "starcoder2", "qwen2_moe", "deepseek_v3", "bloom"}) {
    EXPECT_NE(unsupported_type(type), "") << type;
    const auto [kind, text] = testing::error_of([&] {
      options_from_hugging_face({{"model_type", type}}, "config.json");
    });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text,
                AllOf(StartsWith("config.json: \"model_type\" must be one of"), HasSubstr(type),
                      HasSubstr(unsupported_type(type)), EndsWith("which this version cannot compute")));
  }
  EXPECT_EQ(unsupported_type("llama"), "");
  const auto [kind, text] = testing::error_of([] {
    options_from_hugging_face({{"model_type", "new"}}, "config.json");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("but is \"new\""), Not(HasSubstr("differ"))));
}

/// By the reader, which knows the values of each family's keys.
TEST(UnsupportedValues, AreRefusedByTheirKey) {
  const std::pair<json, const char*> wrong[] = {
      {{{"model_type", "qwen3"}, {"use_sliding_window", true}}, "\"use_sliding_window\" must be false"},
      {{{"model_type", "phi3"}, {"rope_scaling", {{"type", "llama3"}, {"factor", 2}}}},
       "\"type\" must be one of default, linear, longrope, dynamic, the ones that models of phi3 have, but is "
       "\"llama3\""},
      {{{"model_type", "phi3"},
        {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}, {"long_factor", {1}}}}},
       "\"short_factor\" must have a number for each of the 48 frequencies of a head with rope_type longrope, but "
       "has 1; take the list of the model's config.json"},
      {{{"model_type", "gemma2"}, {"use_bidirectional_attention", true}}, "\"use_bidirectional_attention\""},
      {{{"model_type", "smollm3"}, {"num_hidden_layers", 3}, {"no_rope_layers", {0, 1, 1}}},
       "\"no_rope_layers\""},
      {{{"model_type", "gemma3"}}, "it reads images, and its text model, gemma3_text, is a part of it"},
      {{{"model_type", "qwen3_moe"}, {"mlp_only_layers", {0}}}, "\"mlp_only_layers\" must be []"},
      {{{"model_type", "mixtral"}, {"router_jitter_noise", 0.1}}, "noise in the router's input"},
      {{{"model_type", "mixtral"}, {"num_experts_per_tok", 9}}, "at most \"num_experts\", 8"},
      {{{"model_type", "qwen3_moe"}, {"num_experts", 9000}}, "at most 200000 in all 24 layers"},
      {{{"model_type", "qwen3"}, {"num_experts", 4}}, "experts"}};
  for (const auto& [config, expected] : wrong) {
    const auto [kind, text] = testing::error_of([&] { options_from_hugging_face(config, "x"); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << config;
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

TEST(UnknownKeys, OfRotaryPositionsAreRefused) {
  const std::pair<json, const char*> wrong[] = {
      {{{"factor", 4.0}}, "\"factor\": 4.0"},
      {{{"rope_type", "linear"}, {"factor", 2.0}, {"attention_factor", 1.3}}, "\"attention_factor\": 1.3"},
      {{{"type", "mrope"}, {"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}, "\"mrope_section\""}};
  for (const auto& [scaling, expected] : wrong) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const json config = {{"model_type", "llama"}, {key, scaling}};
      const auto [kind, text] = testing::error_of([&] { options_from_hugging_face(config, "x"); });
      EXPECT_EQ(kind, ErrorKind::kCheckpoint) << config;
      EXPECT_THAT(text, AllOf(HasSubstr(key), HasSubstr(expected)));
    }
  }
  const json both = {{"model_type", "llama"},
                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                     {"rope_parameters", {{"rope_type", "default"}}}};
  EXPECT_THAT(testing::error_of([&] { options_from_hugging_face(both, "x"); }).second,
              HasSubstr("\"rope_parameters\" must be the same as \"rope_scaling\""));
}

TEST(UnknownKeys, AreNamedOnceOrRefusedWhereTheModelHasCodeOfItsOwn) {
  json config = {{"model_type", "llama"}, {"logit_tilt", 0.5}, {"off", false}, {"use_cache", true}};
  const auto read = [&] { options_from_hugging_face(config, "config.json"); };
  EXPECT_THAT(testing::log_lines(read), AllOf(HasSubstr("config.json"), HasSubstr("\"logit_tilt\": 0.5"),
                                              Not(HasSubstr("off")), Not(HasSubstr("use_cache"))));
  EXPECT_EQ(testing::log_lines(read), "");
  config["auto_map"] = {{"AutoModelForCausalLM", "modeling.Tilted"}};
  const auto [kind, text] = testing::error_of(read);
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, AllOf(HasSubstr("auto_map"), HasSubstr("\"logit_tilt\": 0.5")));
}

/// Keys with which published models come, as far as they are not those of transformers' classes.
TEST(UnknownKeys, AreNoneInPublishedModels) {
  const json configs[] = {
      {{"model_type", "llama"},
       {"is_llama_config", true},
       {"rope_interleaved", false},
       {"unsloth_version", "2025.1"},
       {"transformers.js_config", {{"dtype", "q4"}}},
       {"_name_or_path", "a/b"},
       {"pretraining_tp", 1},
       {"max_length", 20},
       {"num_local_experts", 1},
       {"sliding_window", 4096},
       {"temperature", 1.0}},
      {{"model_type", "qwen2"}, {"use_mrope", false}, {"max_window_layers", 28}, {"sliding_window", 32768}},
      {{"model_type", "phi3"},
       {"auto_map", {{"AutoConfig", "configuration_phi3.Phi3Config"}}},
       {"full_attn_mod", 1},
       {"interpolate_factor", 1},
       {"lm_head_bias", false},
       {"mlp_bias", false},
       {"embd_pdrop", 0.0},
       {"original_max_position_embeddings", 4096}},
      {{"model_type", "gemma2"}, {"hidden_act", "gelu_pytorch_tanh"}, {"cache_implementation", "hybrid"}},
      {{"model_type", "gpt2"},
       {"n_ctx", 1024},
       {"summary_type", "cls_index"},
       {"summary_use_proj", true},
       {"task_specific_params", {{"text-generation", {{"do_sample", true}}}}},
       {"reorder_and_upcast_attn", true}},
      {{"model_type", "gpt_neox"}, {"classifier_dropout", 0.1}, {"tokenizer_class", "GPTNeoXTokenizer"}}};
  for (const json& config : configs) {
    EXPECT_EQ(testing::log_lines([&] { options_from_hugging_face(config, "x"); }), "") << config;
  }
}

TEST(UnsupportedValues, OfNamesThatTransformersMapsAreRead) {
  const nn::ModelOptions gpt2 = options_from_hugging_face(
      {{"model_type", "gpt2"}, {"num_attention_heads", 16}, {"hidden_size", 64}}, "x");
  EXPECT_EQ(gpt2.num_attention_heads, 16);
  EXPECT_EQ(gpt2.hidden_size, 64);
  EXPECT_THAT(testing::error_of([] {
                options_from_hugging_face({{"model_type", "olmo2"}, {"head_dim", 64}}, "x");
              }).second,
              HasSubstr("\"head_dim\" must be 128"));
}

}  // namespace
}  // namespace fsdp::checkpoint
