#include "model/nn/key_value_cache.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "model/nn/parameter.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

using testing::make_initialized;
using testing::tiny_options;

struct Shape {
  std::string name, architecture;
  int64_t heads, kv_heads;
  bool tied, fused;
};

class Cached : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    options_ = testing::family_options(GetParam().architecture);
    options_.hidden_size = 48;
    options_.num_attention_heads = GetParam().heads;
    options_.num_key_value_heads = GetParam().kv_heads;
    options_.tie_word_embeddings = GetParam().tied;
    options_.fused_kernels = GetParam().fused;
    model_ = make_initialized(options_);
    ids_ = testing::token_rows(0, 3, 11, options_.vocab_size);  // [3, 12]
    at::NoGradGuard no_grad;
    whole_ = model_->forward(ids_);
  }

  /// Scores of all tokens, which are passed in pieces of these lengths.
  at::Tensor in_pieces(const std::vector<int64_t>& lengths) {
    KeyValueCache cache(options_, 12);
    std::vector<at::Tensor> pieces;
    for (int64_t length : lengths) {
      pieces.push_back(scores(*model_, ids_.narrow(1, cache.length(), length), cache));
    }
    return at::cat(pieces, 1);
  }

  static double distance(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.sizes(), b.sizes());
    return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
  }

  ModelOptions options_;
  std::shared_ptr<Stage> model_;
  at::Tensor ids_, whole_;
};

TEST_P(Cached, GivesTheScoresOfTheWholeHoweverTheTokensCome) {
  ASSERT_GT(whole_.abs().max().item<double>(), 0.1);
  EXPECT_LT(distance(in_pieces({12}), whole_), 1e-5);
  EXPECT_LT(distance(in_pieces({5, 7}), whole_), 1e-5);
  EXPECT_LT(distance(in_pieces({1, 4, 1, 3, 2, 1}), whole_), 1e-5);
  EXPECT_LT(distance(in_pieces(std::vector<int64_t>(12, 1)), whole_), 1e-5);
}

TEST_P(Cached, GivesTheLastScoresAlone) {
  KeyValueCache cache(options_, 12);
  EXPECT_LT(distance(next_scores(*model_, ids_.narrow(1, 0, 9), cache), whole_.select(1, 8)), 1e-5);
  EXPECT_LT(distance(next_scores(*model_, ids_.narrow(1, 9, 1), cache), whole_.select(1, 9)), 1e-5);
  EXPECT_LT(distance(next_scores(*model_, ids_.narrow(1, 10, 2), cache), whole_.select(1, 11)), 1e-5);
}

TEST(KeyValueCache, GivesTheScoresOfTheRowsSoFarWhereTheirAnglesDependOnTheLength) {
  for (const char* name : {"longrope", "dynamic"}) {
    const ModelOptions options = testing::family_options(name);  // scaled above 8 tokens
    const auto model = make_initialized(options);
    const at::Tensor ids = testing::token_rows(0, 3, 14, options.vocab_size);
    KeyValueCache cache(options, 14);
    at::NoGradGuard no_grad;
    at::Tensor rows = at::arange(3, at::kLong);
    for (const auto& [first, length] : {std::pair(0, 5), {5, 2}, {7, 1}, {8, 1}, {9, 3}, {12, 1}}) {
      const at::Tensor whole = model->forward(ids.index_select(0, rows).narrow(1, 0, first + length));
      const at::Tensor found = scores(*model, ids.index_select(0, rows).narrow(1, first, length), cache);
      EXPECT_LT((found - whole.narrow(1, first, length)).abs().max().item<double>(), 1e-5) << name << first;
      EXPECT_EQ(cache.length(), first + length);
      const at::Tensor chosen = at::tensor({2, 0}, at::kLong);
      if (first == 5) cache.select_rows(chosen);
      if (first == 5) rows = rows.index_select(0, chosen);
    }
  }
}

TEST_P(Cached, RowsAreChosenAnew) {
  KeyValueCache cache(options_, 12);
  scores(*model_, ids_.narrow(1, 0, 6), cache);
  const at::Tensor chosen = at::tensor({2, 0, 2, 1}, at::kLong);
  cache.select_rows(chosen);
  const at::Tensor rest = ids_.index_select(0, chosen).narrow(1, 6, 6);
  EXPECT_LT(distance(scores(*model_, rest, cache), whole_.index_select(0, chosen).narrow(1, 6, 6)), 1e-5);
}

TEST_P(Cached, Bfloat16AgreesWithItsWhole) {
  for (auto& parameter : model_->named_parameters()) {
    parameter.value().set_data(parameter.value().to(at::kBFloat16));
  }
  at::NoGradGuard no_grad;
  const at::Tensor whole = model_->forward(ids_);
  EXPECT_LT(distance(in_pieces({4, 1, 7}), whole), 0.05 * whole.abs().max().item<double>());
  EXPECT_LT(distance(in_pieces(std::vector<int64_t>(12, 1)), whole), 0.05 * whole.abs().max().item<double>());
}

TEST_P(Cached, RecordsNothingAndLeavesTrainingAsItWas) {
  const at::Tensor rows = testing::token_rows(0, 2, 5, options_.vocab_size);
  const at::Tensor before = testing::loss_of(*model_, rows);
  KeyValueCache cache(options_, 16);
  EXPECT_FALSE(scores(*model_, ids_, cache).requires_grad());
  const at::Tensor after = testing::loss_of(*model_, rows);
  EXPECT_TRUE(at::equal(before, after));
  EXPECT_TRUE(after.requires_grad());
}

INSTANTIATE_TEST_SUITE_P(
    , Cached,
    ::testing::Values(
        Shape{"llama", "llama", 4, 4, false, true}, Shape{"llama_grouped", "llama", 4, 2, false, true},
        Shape{"llama_one_kv_head", "llama", 4, 1, true, true},
        Shape{"llama_composed", "llama", 4, 2, false, false}, Shape{"gpt2", "gpt2", 4, 4, false, true},
        Shape{"gpt2_tied", "gpt2", 3, 3, true, true}, Shape{"gpt2_composed", "gpt2", 4, 4, true, false},
        Shape{"mistral", "mistral", 4, 2, false, true},
        Shape{"mistral_composed", "mistral", 4, 2, false, false}, Shape{"qwen3", "qwen3", 4, 2, false, true},
        Shape{"smollm3", "smollm3", 4, 2, true, true}, Shape{"phi3", "phi3", 4, 2, false, true},
        Shape{"gemma2", "gemma2", 4, 2, true, true}, Shape{"gemma3_text", "gemma3_text", 4, 2, true, true},
        Shape{"gpt_neox", "gpt_neox", 3, 3, false, true}, Shape{"mixtral", "mixtral", 4, 2, false, true},
        Shape{"qwen3_moe", "qwen3_moe", 4, 2, false, true}, Shape{"granite", "granite", 4, 2, false, true},
        Shape{"olmo3", "olmo3", 4, 2, false, true}, Shape{"ernie4_5", "ernie4_5", 4, 2, true, true},
        Shape{"glm4", "glm4", 4, 2, false, true}, Shape{"exaone4", "exaone4", 4, 2, false, true}),
    [](const auto& info) { return info.param.name; });

TEST(KeyValueCache, EndsWithThePositionsOfTheModel) {
  const ModelOptions options = tiny_options();  // 16 positions
  try {
    KeyValueCache cache(options, 17);
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(
        error.what(),
        "a text may have at most 16 tokens, the positions of the model "
        "(max_position_embeddings), but would have 17; shorten the prompt or ask for fewer new tokens");
  }
  for (const char* architecture : {"llama", "gpt2"}) {
    auto model = make_initialized(tiny_options(architecture));
    KeyValueCache cache(tiny_options(architecture), 8);
    scores(*model, at::zeros({1, 6}, at::kLong), cache);
    EXPECT_THROW(scores(*model, at::zeros({1, 3}, at::kLong), cache), util::Error);
    EXPECT_EQ(cache.length(), 6);
  }
}

TEST(ParameterType, MakesModelsOfATypeForInference) {
  ParameterType type(at::kBFloat16);
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const at::Tensor& parameter : make_decoder(tiny_options(architecture))->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
    }
  }
}

}  // namespace
}  // namespace fsdp::nn
