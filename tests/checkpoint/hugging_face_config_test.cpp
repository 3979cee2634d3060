#include "checkpoint/hugging_face_config.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fsdp::checkpoint
