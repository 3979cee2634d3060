#include "shard/model_tree.h"

#include <gtest/gtest.h>

#include "nn/decoder.h"
#include "support/tiny_models.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

TEST(MakeDecoder, RefusesOptionsThatNoModelCanHave) {
  using Change = void (*)(nn::ModelOptions&);
  const std::vector<Change> changes = {[](nn::ModelOptions& o) { o.architecture = "bert"; },
                                       [](nn::ModelOptions& o) { o.vocab_size = 0; },
                                       [](nn::ModelOptions& o) { o.num_attention_heads = 7; },
                                       [](nn::ModelOptions& o) { o.num_key_value_heads = 3; },
                                       [](nn::ModelOptions& o) {
                                         o.num_attention_heads = o.hidden_size;  // of one element
                                         o.num_key_value_heads = 1;
                                       }};
  for (const Change change : changes) {
    nn::ModelOptions options;
    change(options);
    EXPECT_THROW(nn::make_decoder(options, at::kMeta), util::Error) << options.architecture;
  }
}

TEST(ModelTree, OfAModelOnMetaHasTheSameOutline) {
  for (const char* architecture : {"llama", "gpt2"}) {
    nn::ModelOptions options = testing::tiny_options(architecture);
    EXPECT_EQ(make_model_tree(*nn::make_decoder(options)).outline,
              make_model_tree(*nn::make_decoder(options, at::kMeta)).outline);
  }
}

TEST(ModelTree, HasAStageAndATensorForEachEntryOfItsOutline) {
  nn::ModelOptions options = testing::tiny_options();
  options.tie_word_embeddings = true;
  auto model = nn::make_decoder(options);
  model->parameters().front().set_requires_grad(false);
  const ModelTree tree = make_model_tree(*model);
  ASSERT_EQ(tree.modules.size(), tree.outline.nodes.size());
  ASSERT_EQ(tree.tensors.size(), tree.outline.parameters.size());
  for (size_t i = 0; i < tree.modules.size(); ++i) {
    const nn::Hookable* stage = tree.modules[i];
    EXPECT_EQ(stage != nullptr, tree.outline.nodes[i].is_stage);
    EXPECT_EQ(stage != nullptr ? stage->type_name() : "", tree.outline.nodes[i].type);
  }
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const nn::OutlineParameter& parameter = tree.outline.parameters[i];
    EXPECT_EQ(tree.tensors[i].sizes().vec(), parameter.shape);
    EXPECT_EQ(tree.tensors[i].numel(), parameter.numel());
    EXPECT_EQ(tree.tensors[i].requires_grad(), parameter.requires_grad);
    EXPECT_EQ(parameter.names.size(), parameter.nodes.size());
  }
  EXPECT_FALSE(tree.outline.parameters.front().requires_grad);
  EXPECT_EQ(tree.outline.parameters.front().names,
            (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
}

}  // namespace
}  // namespace fsdp::shard
