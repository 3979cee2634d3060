// Outlines of models: those of modules, and those of decoders that nobody has built.

#include "shard/model_tree.h"

#include <gtest/gtest.h>

#include "nn/decoder.h"
#include "nn/decoder_outline.h"
#include "support/tiny_models.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

void expect_equal(const nn::ModelOutline& outline, const nn::ModelOutline& expected) {
  ASSERT_EQ(outline.nodes.size(), expected.nodes.size());
  for (size_t i = 0; i < expected.nodes.size(); ++i) {
    const nn::OutlineNode &node = outline.nodes[i], &other = expected.nodes[i];
    EXPECT_EQ(node.path, other.path) << i;
    EXPECT_EQ(node.is_stage, other.is_stage) << other.path;
    EXPECT_EQ(node.type, other.type) << other.path;
    EXPECT_EQ(node.parent, other.parent) << other.path;
    EXPECT_EQ(node.end, other.end) << other.path;
  }
  ASSERT_EQ(outline.parameters.size(), expected.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    const nn::OutlineParameter &parameter = outline.parameters[i], &other = expected.parameters[i];
    EXPECT_EQ(parameter.names, other.names) << i;
    EXPECT_EQ(parameter.nodes, other.nodes) << other.names.front();
    EXPECT_EQ(parameter.shape, other.shape) << other.names.front();
    EXPECT_EQ(parameter.requires_grad, other.requires_grad) << other.names.front();
  }
  EXPECT_EQ(outline, expected);
}

TEST(DecoderOutline, IsThatOfTheModules) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool tied : {false, true}) {
      for (int64_t layers : {1, 3, 12}) {
        for (int64_t heads : {1, 2, 6}) {
          for (int64_t key_heads = 1; key_heads <= heads; ++key_heads) {
            if (heads % key_heads != 0) continue;
            nn::ModelOptions options;
            options.architecture = architecture;
            options.tie_word_embeddings = tied;
            options.num_hidden_layers = layers;
            options.num_attention_heads = heads;
            options.num_key_value_heads = key_heads;
            options.hidden_size = 24;
            options.intermediate_size = 50;
            options.vocab_size = 101;
            options.max_position_embeddings = 37;
            SCOPED_TRACE(util::concat(architecture, tied ? " tied " : " ", layers, " layers, ", heads, "/",
                                      key_heads, " heads"));
            auto model = nn::make_decoder(options, at::kMeta);
            expect_equal(nn::decoder_outline(options), make_model_tree(*model).outline);
          }
        }
      }
    }
  }
}

TEST(DecoderOutline, RefusesWhatMakeDecoderRefuses) {
  using Change = void (*)(nn::ModelOptions&);
  const std::vector<Change> changes = {[](nn::ModelOptions& o) { o.architecture = "bert"; },
                                       [](nn::ModelOptions& o) { o.vocab_size = 0; },
                                       [](nn::ModelOptions& o) { o.num_attention_heads = 7; },
                                       [](nn::ModelOptions& o) { o.num_key_value_heads = 3; },
                                       [](nn::ModelOptions& o) {
                                         o.num_attention_heads = o.hidden_size;  // of one element
                                         o.num_key_value_heads = 1;
                                       }};
  for (size_t i = 0; i < changes.size(); ++i) {
    nn::ModelOptions options;
    changes[i](options);
    std::string of_outline, of_modules;
    try {
      nn::decoder_outline(options);
    } catch (const util::Error& error) {
      of_outline = error.what();
    }
    try {
      nn::make_decoder(options, at::kMeta);
    } catch (const util::Error& error) {
      of_modules = error.what();
    }
    EXPECT_FALSE(of_outline.empty()) << i;
    EXPECT_EQ(of_outline, of_modules) << i;
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
