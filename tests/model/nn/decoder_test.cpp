#include "model/nn/decoder.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "support/counting_allocator.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

using testing::make_initialized;
using testing::tiny_options;

std::set<std::string> names_of(Stage& model) {
  auto keys = model.named_parameters().keys();
  return {keys.begin(), keys.end()};
}

TEST(Decoder, LlamaHasHuggingFaceNamesAndShapes) {
  auto options = tiny_options();
  options.num_hidden_layers = 1;
  auto model = make_initialized(options);
  EXPECT_EQ(names_of(*model),
            (std::set<std::string>{
                "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
                "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
                "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
                "model.norm.weight", "lm_head.weight"}));
  auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["model.layers.0.self_attn.k_proj.weight"].sizes(), (std::vector<int64_t>{6, 12}));
  EXPECT_EQ(parameters["model.layers.0.mlp.down_proj.weight"].sizes(), (std::vector<int64_t>{12, 20}));
}

TEST(Decoder, Gpt2HasHuggingFaceNamesAndShapes) {
  auto options = tiny_options("gpt2");
  options.num_hidden_layers = 1;
  auto model = make_initialized(options);
  EXPECT_EQ(names_of(*model),
            (std::set<std::string>{"transformer.wte.weight", "transformer.wpe.weight",
                                   "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias",
                                   "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
                                   "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
                                   "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias",
                                   "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_fc.bias",
                                   "transformer.h.0.mlp.c_proj.weight", "transformer.h.0.mlp.c_proj.bias",
                                   "transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"}));
  EXPECT_EQ(model->named_parameters()["transformer.h.0.attn.c_attn.weight"].sizes(),
            (std::vector<int64_t>{12, 36}));
}

TEST(Decoder, GivesLogitsOfEveryPositionAndLooksOnlyBack) {
  for (const std::string& family : testing::family_names()) {
    SCOPED_TRACE(family);
    auto options = testing::family_options(family);
    auto model = make_initialized(options);
    at::Tensor ids = testing::token_rows(0, 2, 8, options.vocab_size);
    at::Tensor logits = model->forward(ids);
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 9, 17}));
    at::Tensor changed = ids.clone();
    changed.select(1, 8).add_(1).remainder_(options.vocab_size);
    at::Tensor other = model->forward(changed);
    EXPECT_TRUE(at::allclose(logits.narrow(1, 0, 8), other.narrow(1, 0, 8), 1e-5, 1e-6));
    EXPECT_FALSE(at::allclose(logits.select(1, 8), other.select(1, 8)));
  }
}

TEST(Decoder, SeesNoFurtherThanItsWindow) {
  auto options = testing::family_options("mistral");
  options.num_hidden_layers = 1;
  for (bool fused : {true, false}) {
    options.fused_kernels = fused;
    auto model = make_initialized(options);
    const at::Tensor ids = testing::token_rows(0, 2, 15, options.vocab_size), changed = ids.clone();
    changed.select(1, 3).add_(1).remainder_(options.vocab_size);
    const at::Tensor difference = (model->forward(ids) - model->forward(changed)).abs().amax({0, 2});
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(difference[i].item<float>() > 1e-4F, i >= 3 && i < 8) << i;
  }
}

/// Every second layer of Gemma sees all tokens, and the layers between have a window.
TEST(Decoder, SeesEverythingInEveryNthLayer) {
  auto options = testing::family_options("gemma3_text");
  const auto reaches = [&](int64_t layers) {
    options.num_hidden_layers = layers;
    auto model = make_initialized(options);
    const at::Tensor ids = testing::token_rows(0, 2, 15, options.vocab_size), changed = ids.clone();
    changed.select(1, 0).add_(1).remainder_(options.vocab_size);
    return (model->forward(ids) - model->forward(changed)).select(1, 15).abs().max().item<float>() > 1e-5F;
  };
  EXPECT_FALSE(reaches(1));
  EXPECT_TRUE(reaches(2));
}

TEST(Decoder, HasTheLossOfItsScoresWithASoftCap) {
  const auto options = testing::family_options("gemma2");
  const at::Tensor rows = testing::token_rows(0, 3, 12, options.vocab_size);
  const at::Tensor inputs = rows.narrow(1, 0, 12), targets = rows.narrow(1, 1, 12).contiguous();
  auto model = make_initialized(options), other = make_initialized(options);
  const at::Tensor scores = other->forward(inputs);
  EXPECT_LT(scores.abs().max().item<float>(), options.final_logit_softcapping);
  const at::Tensor loss = loss_of(*model, inputs, targets), expected = next_token_loss(scores, targets);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
  loss.backward();
  expected.backward();
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor found = parameter.value().grad(),
                     wanted = other->named_parameters()[parameter.key()].grad();
    EXPECT_LT((found - wanted).norm().item<double>(), 1e-4 * wanted.norm().item<double>()) << parameter.key();
  }
}

TEST(Decoder, RefusesOptionsThatItsFamilyLacks) {
  auto options = tiny_options("gpt2");
  options.sliding_window = 5;
  options.attention_bias = true;
  try {
    make_decoder(options);
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_STREQ(error.what(), "attention_bias, sliding_window do not apply to gpt2; leave them out");
  }
}

TEST(Decoder, PositionsMatter) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto model = make_initialized(tiny_options(architecture));
    // The same token everywhere: without positions every position would give the same scores.
    at::Tensor ids = at::tensor({1, 2, 3, 2}, at::kLong).unsqueeze(0);
    at::Tensor swapped = at::tensor({2, 1, 3, 2}, at::kLong).unsqueeze(0);
    EXPECT_FALSE(at::allclose(model->forward(ids).select(1, 3), model->forward(swapped).select(1, 3)));
  }
}

TEST(Decoder, TiedEmbeddingsShareOneParameter) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto options = tiny_options(architecture);
    int64_t untied = count_parameters(*make_initialized(options));
    options.tie_word_embeddings = true;
    auto model = make_initialized(options);
    EXPECT_EQ(count_parameters(*model), untied - 17 * 12);
    std::string embedding =
        options.architecture == "llama" ? "model.embed_tokens.weight" : "transformer.wte.weight";
    EXPECT_TRUE(model->named_parameters()[embedding].is_same(model->named_parameters()["lm_head.weight"]));
  }
}

TEST(Decoder, OnTheMetaDeviceHasTheSameParametersWithoutMemory) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool tied : {false, true}) {
      auto options = tiny_options(architecture);
      options.tie_word_embeddings = tied;
      auto real = make_decoder(options), meta = make_decoder(options, at::kMeta);
      ASSERT_EQ(meta->named_parameters().size(), real->named_parameters().size());
      for (const auto& parameter : real->named_parameters()) {
        const at::Tensor other = meta->named_parameters()[parameter.key()];
        EXPECT_TRUE(other.is_meta()) << parameter.key();
        EXPECT_TRUE(other.requires_grad()) << parameter.key();
        EXPECT_EQ(other.sizes(), parameter.value().sizes()) << parameter.key();
      }
      EXPECT_EQ(count_parameters(*meta), count_parameters(*real));
      for (const auto& buffer : meta->named_buffers()) EXPECT_FALSE(buffer.value().is_meta()) << buffer.key();
    }
  }
}

TEST(Decoder, OfATrillionParametersFitsOnTheMetaDevice) {
  ModelOptions options;
  options.vocab_size = 50'000;
  options.hidden_size = 25'600;
  options.intermediate_size = 102'400;
  options.num_hidden_layers = 96;
  options.num_attention_heads = options.num_key_value_heads = 160;
  testing::CountingAllocator::Scope tensors;
  auto model = make_decoder(options, at::kMeta);
  EXPECT_GT(count_parameters(*model), 1'000'000'000'000);
  EXPECT_LT(tensors.peak_bytes(), 1'000'000);
}

TEST(Decoder, AfterOneOnTheMetaDeviceTheNextLiesOnTheCpu) {
  make_decoder(tiny_options(), at::kMeta);
  EXPECT_TRUE(make_decoder(tiny_options())->parameters().front().is_cpu());
  auto unknown = tiny_options();
  unknown.architecture = "mamba";
  EXPECT_THROW(make_decoder(unknown, at::kMeta), util::Error);
  EXPECT_TRUE(make_decoder(tiny_options())->parameters().front().is_cpu());
}

TEST(Decoder, RefusesShapesThatNoModelHas) {
  auto with = [](auto change) {
    auto options = tiny_options();
    change(options);
    return options;
  };
  EXPECT_THROW(make_decoder(with([](auto& o) { o.num_attention_heads = 5; })), util::Error);
  EXPECT_THROW(make_decoder(with([](auto& o) { o.num_attention_heads = 4, o.num_key_value_heads = 3; })),
               util::Error);
  EXPECT_THROW(make_decoder(with([](auto& o) { o.num_attention_heads = 4, o.hidden_size = 20; })),
               util::Error);
  EXPECT_THROW(make_decoder(with([](auto& o) { o.architecture = "mamba"; })), util::Error);
  EXPECT_THROW(make_decoder(with([](auto& o) { o.vocab_size = 0; })), util::Error);
  auto gpt2 = make_initialized(tiny_options("gpt2"));
  EXPECT_THROW(gpt2->forward(at::zeros({1, 17}, at::kLong)), util::Error);
}

/// Loss and gradients by name.
std::map<std::string, at::Tensor> results_of(const ModelOptions& options, at::ScalarType type) {
  auto model = make_initialized(options);
  for (const auto& parameter : model->named_parameters()) {
    // Initially biases are zeros and norm weights ones, which would hide errors.
    at::NoGradGuard no_grad;
    at::Tensor value = parameter.value();
    if (value.dim() == 1) value.add_(at::arange(value.numel()).sin(), 0.3);
  }
  model->to(type);
  at::Tensor loss = testing::loss_of(*model, testing::token_rows(0, 5, 15, options.vocab_size));
  loss.backward();
  std::map<std::string, at::Tensor> results{{"loss", loss.detach()}};
  for (const auto& parameter : model->named_parameters()) results[parameter.key()] = parameter.value().grad();
  return results;
}

TEST(Decoder, OfFusedKernelsIsThatOfComposedOperations) {
  for (const std::string& architecture : testing::family_names()) {
    for (const auto& [type, tolerance] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 3e-2)}) {
      for (const char* matmul : {"mkl", "onednn", "amx"}) {
        // A rounding may choose another expert.
        if (type == at::kBFloat16 && testing::family_options(architecture).num_experts > 0) continue;
        if (std::string(matmul) == "amx" && !util::has_matrix_unit()) continue;
        // More norms, and so more roundings.
        const bool has_more_norms =
            architecture.starts_with("gemma") || architecture == "olmo3" || architecture == "exaone4";
        const double of_family = has_more_norms ? 3 * tolerance : tolerance;
        auto options = testing::family_options(architecture);
        options.matmul = matmul;
        options.fused_kernels = true;
        const auto fused = results_of(options, type);
        options.fused_kernels = false;
        for (const auto& [name, expected] : results_of(options, type)) {
          const at::Tensor found = fused.at(name).to(at::kDouble), wanted = expected.to(at::kDouble);
          EXPECT_LT((found - wanted).norm().item<double>(), of_family * wanted.norm().item<double>())
              << architecture << " " << type << " " << matmul << " " << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::nn
