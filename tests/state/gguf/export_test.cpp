// Models as GGUF files and back: each weight under llama.cpp's name and in its layout.

#include "state/gguf_export/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "state/convert/hugging_face_model.h"
#include "state/gguf/forms.h"
#include "state/gguf/gguf_fixtures.h"
#include "state/gguf_export/writer.h"
#include "state/weights/gguf_layout.h"
#include "state/weights/gguf_source.h"

namespace fsdp::gguf {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufExport : public ::testing::TestWithParam<std::string> {
 protected:
  checkpoint::StoredModel write(const nn::ModelOptions& options) {
    weights_ = weights_of(*gguf_model(options));
    return write_model(root_ / "hf", options, weights_);
  }
  Reader export_as(const checkpoint::StoredModel& model, TensorType type) const {
    export_model(model, {.output = file(), .type = type, .overwrite = true});
    return Reader(file());
  }
  checkpoint::StoredModel import(const fs::path& config = {}, int64_t world_size = 1) const {
    fs::remove_all(root_ / "imported");
    checkpoint::import_model(
        {.source = file(), .config = config, .output = root_ / "imported", .world_size = world_size});
    return checkpoint::open_model(root_ / "imported");
  }
  /// Compares an imported model with the values of its file in our layout, rounded to `dtype`.
  static void expect_values_of(const Reader& reader, const checkpoint::StoredModel& imported,
                               at::ScalarType dtype = at::kFloat) {
    const GgufForm& form = form_of(imported.config, imported.options, "config.json");
    EXPECT_FALSE(imported.names.empty());
    for (const auto& [name, stored] : imported.names) {
      const auto theirs = their_tensor(form, name);
      at::Tensor values = dequantised(reader, theirs->name);
      if (theirs->stored == Stored::kStacked) values = values[theirs->expert];
      const at::Tensor expected = to_ours(values, theirs->stored, imported.options).to(dtype).contiguous();
      ASSERT_EQ(imported.weights.dtype(stored), dtype) << name;
      at::Tensor read = at::empty_like(expected);
      imported.weights.read_into(stored, read);
      EXPECT_TRUE(same_bits(read, expected)) << name;
    }
  }
  void expect_refused(const std::string& text) const {
    auto [kind, found] = error_of([&] { import(); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(found, HasSubstr(text));
    EXPECT_FALSE(fs::exists(root_ / "imported"));
  }
  at::Tensor weight(const std::string& name) const {
    for (const auto& [known, tensor] : weights_) {
      if (known == name) return tensor;
    }
    throw std::runtime_error("no weight " + name);
  }
  fs::path file() const { return root_ / "model.gguf"; }

  TemporaryFolder root_;
  NamedTensors weights_;
};

TEST_P(GgufExport, HasTheSameBitsWhenItIsImportedAgain) {
  const nn::ModelOptions options = gguf_options(GetParam());
  const checkpoint::StoredModel model = write(options);
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    const Reader reader = export_as(model, type);
    const checkpoint::StoredModel back = import({}, 3);
    EXPECT_EQ(back.names.size(), weights_.size());
    for (const auto& [name, tensor] : weights_) {
      const bool is_matrix =
          tensor.dim() == 2 && name != "transformer.wpe.weight" && !name.ends_with(".gate.weight");
      const at::ScalarType dtype = is_matrix ? *traits_of(type).dtype : at::kFloat;
      at::Tensor read = at::empty_like(tensor, dtype);
      ASSERT_EQ(back.weights.dtype(back.names.at(name)), dtype) << name;
      back.weights.read_into(back.names.at(name), read);
      EXPECT_TRUE(same_bits(read, tensor.to(dtype))) << name;
    }
    nlohmann::json expected = checkpoint::hugging_face_config(options),
                   found = checkpoint::hugging_face_config(back.options);
    expected.erase("initializer_range"), found.erase("initializer_range");
    for (const char* dropout :
         {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "residual_dropout"})
      expected.erase(dropout), found.erase(dropout);
    EXPECT_EQ(found, expected);

    // And exported again it is the same file.
    const std::string first = util::read_file(file());
    export_model(back, {.output = file(), .overwrite = true});
    EXPECT_TRUE(util::read_file(file()) == first) << util::name_of(type);
  }
}

TEST_P(GgufExport, OfQuantisedTypesIsWithinTheirRounding) {
  const checkpoint::StoredModel model = write(gguf_options(GetParam()));
  const Reader plain = export_as(model, TensorType::kF32);
  std::map<std::string, at::Tensor> expected;
  for (const auto& [name, tensor] : plain.tensors()) expected[name] = dequantised(plain, name);
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0}) {
    const Reader reader = export_as(model, type);
    ASSERT_EQ(reader.tensors().size(), expected.size());
    for (const auto& [name, tensor] : reader.tensors()) {
      const bool makes_logits =
          name == (model.options.tie_word_embeddings ? "token_embd.weight" : "output.weight");
      const bool is_matrix = tensor.shape.size() >= 2 && name != "position_embd.weight" &&
                             !name.ends_with(".ffn_gate_inp.weight");
      EXPECT_EQ(tensor.type, !is_matrix ? TensorType::kF32 : makes_logits ? TensorType::kQ8_0 : type) << name;
      const double largest = expected[name].abs().max().item<double>();
      const double difference = (expected[name] - dequantised(reader, name)).abs().max().item<double>();
      EXPECT_LE(difference, is_matrix ? largest / (tensor.type == TensorType::kQ8_0 ? 225 : 7.7) : 0) << name;
    }
    EXPECT_EQ(*reader.find<uint32_t>("general.file_type"), type == TensorType::kQ8_0 ? 7 : 2);
  }
}

TEST_P(GgufExport, OfQuantisedTypesIsImportedAsItsValues) {
  const checkpoint::StoredModel model = write(gguf_options(GetParam()));
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0}) {
    const Reader reader = export_as(model, type);
    expect_values_of(reader, import({}, 3));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GgufExport, ::testing::ValuesIn(kGgufModels),
                         [](const auto& info) { return info.param; });

using GgufModel = GgufExport;

TEST_F(GgufModel, InterleavesTheRowsOfRotatedHeads) {
  const checkpoint::StoredModel model = write(gguf_options("llama"));
  const Reader reader = export_as(model, TensorType::kF32);
  const at::Tensor query = weight("model.layers.1.self_attn.q_proj.weight");
  const at::Tensor stored = dequantised(reader, "blk.1.attn_q.weight");
  const int64_t width = 16;
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t i = 0; i < width / 2; ++i) {
      EXPECT_TRUE(at::equal(stored[head * width + 2 * i], query[head * width + i]));
      EXPECT_TRUE(at::equal(stored[head * width + 2 * i + 1], query[head * width + width / 2 + i]));
    }
  }
  EXPECT_TRUE(at::equal(dequantised(reader, "blk.1.attn_v.weight"),
                        weight("model.layers.1.self_attn.v_proj.weight")));
}

TEST_F(GgufModel, LeavesTheRowsOfQwen2AndTransposesGpt2) {
  Reader reader = export_as(write(gguf_options("qwen2")), TensorType::kF32);
  EXPECT_TRUE(at::equal(dequantised(reader, "blk.0.attn_q.weight"),
                        weight("model.layers.0.self_attn.q_proj.weight")));
  const Reader gpt2 = export_as(write(gguf_options("gpt2")), TensorType::kF32);
  EXPECT_TRUE(at::equal(dequantised(gpt2, "blk.0.attn_qkv.weight"),
                        weight("transformer.h.0.attn.c_attn.weight").t()));
}

TEST_F(GgufModel, HasTheQueriesKeysAndValuesOfAllHeadsTogether) {
  const nn::ModelOptions options = gguf_options("gpt_neox");
  const Reader reader = export_as(write(options), TensorType::kF32);
  const std::string name = "gpt_neox.layers.1.attention.query_key_value.";
  const at::Tensor ours = weight(name + "weight"), bias = weight(name + "bias");
  const at::Tensor theirs = dequantised(reader, "blk.1.attn_qkv.weight"),
                   their_bias = dequantised(reader, "blk.1.attn_qkv.bias");
  constexpr int64_t kHeads = 4, kWidth = 16;
  for (int64_t part = 0; part < 3; ++part) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t from = (head * 3 + part) * kWidth, to = (part * kHeads + head) * kWidth;
      EXPECT_TRUE(at::equal(theirs.narrow(0, to, kWidth), ours.narrow(0, from, kWidth)));
      EXPECT_TRUE(at::equal(their_bias.narrow(0, to, kWidth), bias.narrow(0, from, kWidth)));
    }
  }
}

TEST_F(GgufModel, HasTheFactorsOfGemmasNorms) {
  const Reader reader = export_as(write(gguf_options("gemma3_text")), TensorType::kBF16);
  for (const auto& [theirs, ours] : {std::pair("blk.0.attn_norm", "model.layers.0.input_layernorm"),
                                     {"blk.0.post_attention_norm", "model.layers.0.post_attention_layernorm"},
                                     {"blk.0.ffn_norm", "model.layers.0.pre_feedforward_layernorm"},
                                     {"blk.0.post_ffw_norm", "model.layers.0.post_feedforward_layernorm"},
                                     {"blk.0.attn_k_norm", "model.layers.0.self_attn.k_norm"},
                                     {"output_norm", "model.norm"}}) {
    EXPECT_TRUE(
        at::equal(dequantised(reader, concat(theirs, ".weight")), weight(concat(ours, ".weight")) + 1))
        << theirs;
  }
}

TEST_F(GgufModel, SaysWhatDiffersBetweenArchitectures) {
  const auto number = [](const Reader& reader, const std::string& key) {
    return *reader.find<uint32_t>(key);
  };
  const Reader gemma2 = export_as(write(gguf_options("gemma2")), TensorType::kF32);
  EXPECT_EQ(*gemma2.find<float>("gemma2.attn_logit_softcapping"), 2);
  EXPECT_EQ(*gemma2.find<float>("gemma2.final_logit_softcapping"), 3);
  EXPECT_EQ(number(gemma2, "gemma2.attention.sliding_window"), 5);
  EXPECT_FALSE(gemma2.metadata().contains("gemma2.attention.sliding_window_pattern")) << "2 by default";
  const Reader gemma3 = export_as(write(gguf_options("gemma3_text")), TensorType::kF32);
  EXPECT_EQ(number(gemma3, "gemma3.attention.sliding_window_pattern"), 2);
  EXPECT_EQ(*gemma3.find<float>("gemma3.rope.freq_base_swa"), 1000);
  EXPECT_EQ(*gemma3.find<float>("gemma3.rope.scaling.factor"), 2);
  const Reader phi3 = export_as(write(gguf_options("phi3")), TensorType::kF32);
  EXPECT_EQ(number(phi3, "phi3.rope.dimension_count"), 12);
  EXPECT_EQ(number(phi3, "phi3.attention.sliding_window"), 128);
  EXPECT_EQ(phi3.tensors().at("blk.0.ffn_up.weight").shape, (std::vector<int64_t>{192, 64}));
  const Reader neox = export_as(write(gguf_options("gpt_neox")), TensorType::kF32);
  EXPECT_TRUE(*neox.find<bool>("gptneox.use_parallel_residual"));
  EXPECT_EQ(number(neox, "gptneox.rope.dimension_count"), 4);
  EXPECT_EQ(*neox.find<float>("gptneox.attention.layer_norm_epsilon"), 1e-5F);
}

/// The 27B of Gemma divide by the root of hidden_size / heads, the others by that of a head's width.
/// llama.cpp multiplies the cosines and sines of YaRN by 1 + 0.1 ln(factor) and by the file's factor.
TEST_F(GgufModel, HasTheRotaryScalingsAsLlamaCppsConverterWritesThem) {
  nn::ModelOptions options = gguf_options("yarn");
  const Reader yarn = export_as(write(options), TensorType::kF32);
  EXPECT_EQ(*yarn.find<std::string>("qwen3.rope.scaling.type"), "yarn");
  EXPECT_EQ(*yarn.find<float>("qwen3.rope.scaling.factor"), 4);
  EXPECT_EQ(*yarn.find<uint32_t>("qwen3.rope.scaling.original_context_length"), 64);
  EXPECT_EQ(yarn.find<float>("qwen3.rope.scaling.attn_factor"), nullptr);
  options.rope_attention_factor = 1.5;
  const Reader given = export_as(write(options), TensorType::kF32);
  EXPECT_NEAR(*given.find<float>("qwen3.rope.scaling.attn_factor"), 1.5 / (1 + 0.1 * std::log(4.0)), 1e-6);
  EXPECT_NEAR(import({}, 1).options.rope_attention_factor, 1.5, 1e-6);

  const Reader phi3 = export_as(write(gguf_options("longrope")), TensorType::kF32);
  EXPECT_EQ(phi3.find<std::string>("phi3.rope.scaling.type"), nullptr);
  EXPECT_EQ(*phi3.find<uint32_t>("phi3.rope.scaling.original_context_length"), 32);
  EXPECT_NEAR(*phi3.find<float>("phi3.rope.scaling.attn_factor"),
              std::sqrt(1 + std::log(2.0) / std::log(32.0)), 1e-6);
  EXPECT_TRUE(at::equal(dequantised(phi3, "rope_factors_long.weight"),
                        at::tensor({1.0F, 2.0F, 4.0F, 8.0F, 9.5F, 20.0F})));
  EXPECT_TRUE(at::equal(dequantised(phi3, "rope_factors_short.weight"),
                        at::tensor({1.0F, 1.125F, 1.5F, 2.0F, 2.5F, 3.0F})));
}

TEST_F(GgufModel, DividesTheScoresOfGemmaAsLlamaCppDoes) {
  nn::ModelOptions options = gguf_options("gemma2");
  options.num_hidden_layers = 46;
  options.query_pre_attn_scalar = 16;
  export_as(write(options), TensorType::kF32);
  EXPECT_EQ(import().options.query_pre_attn_scalar, 16);
  options.query_pre_attn_scalar = 0;
  EXPECT_THAT(error_of([&] { export_as(write(options), TensorType::kF32); }).second,
              HasSubstr("has \"query_pre_attn_scalar\": 32 instead of 16"));
}

TEST_F(GgufModel, WithoutWindowsHasNone) {
  nn::ModelOptions options = gguf_options("gemma3_without_windows");
  EXPECT_FALSE(
      export_as(write(options), TensorType::kF32).metadata().contains("gemma3.attention.sliding_window"));
  EXPECT_EQ(import().options.sliding_window, 0);
  options = gguf_options("phi3");
  options.sliding_window = 0;
  export_as(write(options), TensorType::kF32);
  EXPECT_EQ(import().options.sliding_window, 0);
}

/// llama.cpp's converter writes a list, and the factor of cosines and sines as config.json has it.
TEST_F(GgufModel, IsReadAsLlamaCppsConverterDescribesAnOlmo3) {
  nn::ModelOptions options = gguf_options("olmo3");
  options.num_hidden_layers = 5;
  export_as(write(options), TensorType::kF32);
  const std::string exported = util::read_file(file());
  const auto with_list = [&](const std::vector<int32_t>& list) {
    root_.write("model.gguf", exported);
    const Reader plain(file());
    Metadata metadata(plain.metadata().begin(), plain.metadata().end());
    for (auto& [key, value] : metadata) {
      if (key == "olmo2.attention.sliding_window_pattern") value = list;
    }
    metadata.emplace_back("olmo2.rope.scaling.yarn_attn_factor", 1.5F);
    metadata.emplace_back("olmo2.rope.scaling.yarn_beta_fast", 4.0F);
    std::vector<Tensor> tensors;
    for (const auto& [name, tensor] : plain.tensors()) tensors.push_back(tensor);
    Writer writer(root_ / "other.gguf", metadata, tensors);
    for (const Tensor& tensor : tensors) {
      std::string bytes(static_cast<size_t>(bytes_of(tensor)), 0);
      plain.read(tensor, 0, bytes_of(tensor), bytes.data());
      writer.append(bytes.data(), bytes_of(tensor));
    }
    writer.finish();
    fs::rename(root_ / "other.gguf", file());
  };
  with_list({1, 1, 0, 1, 1});
  const checkpoint::StoredModel model = import();
  EXPECT_EQ(model.options.sliding_window, 5);
  EXPECT_EQ(model.options.sliding_window_pattern, 3);
  EXPECT_EQ(model.options.rope_attention_factor, 1.5);
  EXPECT_EQ(model.options.rope_beta_fast, 4);
  fs::remove_all(root_ / "imported");
  with_list({1, 1, 0, 1});
  expect_refused(
      "\"olmo2.attention.sliding_window_pattern\" must have a number for each of the 5 layers, but has 4");
}

TEST_F(GgufModel, HasNoHeadIfItIsTied) {
  nn::ModelOptions options = gguf_options("llama");
  EXPECT_TRUE(export_as(write(options), TensorType::kF16).tensors().contains("output.weight"));
  options.tie_word_embeddings = true;
  EXPECT_FALSE(export_as(write(options), TensorType::kF16).tensors().contains("output.weight"));
  EXPECT_TRUE(import().options.tie_word_embeddings);
}

TEST_F(GgufModel, SaysWhatTheModelIs) {
  const Reader reader = export_as(write(gguf_options("llama3")), TensorType::kF16);
  EXPECT_EQ(*reader.find<std::string>("general.architecture"), "llama");
  EXPECT_EQ(*reader.find<std::string>("general.name"), "model");
  EXPECT_EQ(*reader.find<uint32_t>("llama.attention.key_length"), 32U);
  EXPECT_EQ(*reader.find<uint32_t>("llama.attention.head_count_kv"), 2U);
  EXPECT_EQ(*reader.find<float>("llama.rope.freq_base"), 500000.0F);
  EXPECT_EQ(*reader.find<std::string>("tokenizer.ggml.model"), "no_vocab");
  // As llama.cpp's converter gives them for Llama 3.2, by its formula: short waves stay, long ones are
  // slower.
  const at::Tensor divisors = dequantised(reader, "rope_freqs.weight");
  ASSERT_EQ(divisors.numel(), 16);
  EXPECT_EQ(divisors[0].item<float>(), 1.0F);
  EXPECT_EQ(divisors[15].item<float>(), 32.0F);
  const double wave = 2 * M_PI * std::pow(500000.0, 8.0 / 16);
  const double share = (8192 / wave - 1) / 3;
  EXPECT_NEAR(divisors[8].item<float>(), 1 / ((1 - share) / 32 + share), 1e-4);
}

TEST_F(GgufModel, KeepsMatricesInF16WhoseRowsAreNoBlocks) {
  nn::ModelOptions options = gguf_options("llama");
  options.intermediate_size = 80;
  const Reader reader = export_as(write(options), TensorType::kQ4_0);
  EXPECT_EQ(reader.tensors().at("blk.0.ffn_down.weight").type, TensorType::kF16);
  EXPECT_EQ(reader.tensors().at("blk.0.ffn_up.weight").type, TensorType::kQ4_0);
}

TEST_F(GgufModel, HasTheTypeOfTheWeightsUnlessOneIsChosen) {
  const nn::ModelOptions options = gguf_options("llama");
  for (auto& [name, tensor] : weights_ = weights_of(*gguf_model(options))) tensor = tensor.to(at::kBFloat16);
  write_model(root_ / "hf", options, weights_);
  nlohmann::json config = checkpoint::hugging_face_config(options);
  config["torch_dtype"] = "bfloat16";
  std::ofstream(root_ / "hf/config.json") << config;
  EXPECT_EQ(export_model(checkpoint::open_model(root_ / "hf"), {.output = file()}).type, TensorType::kBF16);
}

TEST_F(GgufModel, ReplacesAFileOnlyIfItMay) {
  const checkpoint::StoredModel model = write(gguf_options("gpt2"));
  export_model(model, {.output = file()});
  EXPECT_EQ(error_of([&] { export_model(model, {.output = file()}); }).first, ErrorKind::kCheckpoint);
  EXPECT_NO_THROW(export_model(model, {.output = file(), .overwrite = true}));
  EXPECT_EQ(error_of([&] { export_model(model, {.output = root_.path()}); }).first, ErrorKind::kUsage);
}

TEST_F(GgufModel, ThatLlamaCppCannotComputeIsRefused) {
  const auto refused = [&](auto change) {
    nn::ModelOptions options = gguf_options("llama");
    change(options);
    const checkpoint::StoredModel model = write(options);
    auto [kind, text] = error_of([&] { export_model(model, {.output = file()}); });
    EXPECT_EQ(kind, ErrorKind::kUsage);
    EXPECT_FALSE(fs::exists(file()));
    return text;
  };
  EXPECT_THAT(
      refused([](auto& options) { options.hidden_act = nn::Activation::kGeluTanh; }),
      HasSubstr(
          "has \"hidden_act\": \"gelu_pytorch_tanh\", which llama.cpp's architecture llama does not have"));
  EXPECT_THAT(
      refused([](auto& options) {
        options = gguf_options("llama3");
        options.attention_bias = options.mlp_bias = false;
        options.qkv_bias = true;
      }),
      HasSubstr("has the rotary scaling of Llama 3, which llama.cpp's architecture qwen2 does not have"));
  EXPECT_THAT(refused([](auto& options) { options.qkv_bias = true, options.head_dim = 32; }),
              HasSubstr("has heads whose widths do not add up to hidden_size"));
  const auto refused_of = [&](const char* family, auto change) {
    return refused([&](auto& options) {
      options = gguf_options(family);
      change(options);
    });
  };
  for (const auto& [family, text, change] : std::vector<
           std::tuple<const char*, const char*,
                      std::function<
                          void(nn::ModelOptions&)>>>{{"qwen3", "\"attention_bias\": true",
                                                      [](auto& o) { o.attention_bias = true; }},
                                                     {"qwen3_moe", "\"norm_topk_prob\": false",
                                                      [](auto& o) { o.norm_topk_prob = false; }},
                                                     {"qwen3_moe", "\"decoder_sparse_step\": 2",
                                                      [](auto& o) { o.decoder_sparse_step = 2; }},
                                                     {"qwen3_moe", "\"attention_bias\": true",
                                                      [](auto& o) { o.attention_bias = true; }},
                                                     {"olmo2", "\"tie_word_embeddings\": true",
                                                      [](auto& o) { o.tie_word_embeddings = true; }},
                                                     {"smollm3", "\"no_rope_layer_interval\": 2",
                                                      [](auto& o) { o.no_rope_layer_interval = 2; }},
                                                     {"smollm3", "\"no_rope_layer_interval\": null",
                                                      [](auto& o) { o.no_rope_layer_interval = 0; }},
                                                     {"gemma2", "has no \"attn_logit_softcapping\"",
                                                      [](auto& o) { o.attn_logit_softcapping = 0; }},
                                                     {"gemma2",
                                                      "has no \"sliding_window\", which llama.cpp's architecture gemma2 needs",
                                                      [](auto& o) { o.sliding_window = 0; }},
                                                     {"gemma2", "\"tie_word_embeddings\": false",
                                                      [](auto& o) { o.tie_word_embeddings = false; }},
                                                     {"gemma3_text", "\"query_pre_attn_scalar\": 20",
                                                      [](auto& o) { o.query_pre_attn_scalar = 20; }},
                                                     {"yarn", "has \"truncate\": false",
                                                      [](auto& o) { o.rope_truncate = false; }},
                                                     {"yarn",
                                                      "has \"beta_fast\": 4, which llama.cpp's architecture qwen3 always has as 32",
                                                      [](auto& o) { o.rope_beta_fast = 4; }},
                                                     {"gemma3_text", "has YaRN and layers without it",
                                                      [](auto& o) { o.rope_type = "yarn"; }},
                                                     {"linear", "has the rotary scaling dynamic",
                                                      [](auto& o) { o.rope_type = "dynamic"; }},
                                                     {"linear", "has the rotary scaling longrope",
                                                      [](auto& o) {
                                                        o.rope_type = "longrope";
                                                        o.rope_short_factor = o.rope_long_factor =
                                                            std::vector<double>(8, 1.0);
                                                      }},
                                                     {"seed_oss", "\"mlp_bias\": true",
                                                      [](auto& o) { o.mlp_bias = true; }},
                                                     {"olmo3", "in layers with a window and ",
                                                      [](auto& o) { o.rope_local_base_freq = 1e3; }},
                                                     {"exaone4",
                                                      "has windows in 2 layers, which llama.cpp's architecture exaone4 has in models of 64 layers alone",
                                                      [](auto& o) {
                                                        o.sliding_window = 5;
                                                        o.sliding_window_pattern = 2;
                                                      }},
                                                     {"exaone4", "has 64 layers without windows",
                                                      [](auto& o) { o.num_hidden_layers = 64; }},
                                                     {"exaone4", "has heads whose widths do not add up",
                                                      [](auto& o) { o.head_dim = 32; }},
                                                     {"gpt_neox", "\"attention_bias\": false",
                                                      [](auto& o) { o.attention_bias = false; }},
                                                     {"gpt_neox", "\"hidden_act\": \"silu\"", [](auto& o) {
                                                        o.hidden_act = nn::Activation::kSilu;
                                                      }}}) {
    EXPECT_THAT(refused_of(family, change), HasSubstr(text)) << family;
  }
}

TEST_F(GgufModel, OfAFamilyThatLlamaCppLacksIsRefused) {
  nn::ModelOptions options = family_options("helium");
  const auto [kind, text] = error_of([&] { export_as(write(options), TensorType::kF32); });
  EXPECT_EQ(kind, ErrorKind::kUsage);
  EXPECT_THAT(text, HasSubstr("but is \"helium\"; export the model as safetensors"));
}

TEST_F(GgufModel, HasAtMostAsManyExpertsAsLlamaCpp) {
  nn::ModelOptions options = gguf_options("mixtral");
  const auto family_is_found = [&](int64_t experts) {
    options.num_experts = experts;
    return form_of(checkpoint::hugging_face_config(options), options, "config.json");
  };
  EXPECT_NO_THROW(family_is_found(1024));
  EXPECT_THAT(
      error_of([&] { family_is_found(1025); }).second,
      HasSubstr(
          "config.json has \"num_experts\": 1025, which llama.cpp's architecture llama limits to 1024"));
}

TEST_F(GgufModel, StacksExpertsInTheOrderOfTheirNumbers) {
  const Reader qwen = export_as(write(gguf_options("qwen3_moe")), TensorType::kF32);
  for (const auto& [theirs, ours] : {std::pair("ffn_gate_exps", "gate_proj"),
                                     {"ffn_up_exps", "up_proj"},
                                     {"ffn_down_exps", "down_proj"}}) {
    const at::Tensor stack = dequantised(qwen, concat("blk.1.", theirs, ".weight"));
    ASSERT_EQ(stack.size(0), 12) << theirs;
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(at::equal(stack[i], weight(concat("model.layers.1.mlp.experts.", i, ".", ours, ".weight"))))
          << theirs << " " << i;
    }
  }
  EXPECT_TRUE(
      at::equal(dequantised(qwen, "blk.1.ffn_gate_inp.weight"), weight("model.layers.1.mlp.gate.weight")));
  EXPECT_EQ(*qwen.find<std::string>("general.architecture"), "qwen3moe");
  EXPECT_EQ(*qwen.find<uint32_t>("qwen3moe.expert_count"), 12);
  EXPECT_EQ(*qwen.find<uint32_t>("qwen3moe.expert_used_count"), 3);
  EXPECT_EQ(*qwen.find<uint32_t>("qwen3moe.expert_feed_forward_length"), 32);
  EXPECT_EQ(*qwen.find<uint32_t>("qwen3moe.feed_forward_length"), 96);

  const Reader mixtral = export_as(write(gguf_options("mixtral")), TensorType::kF32);
  const std::string second = "model.layers.0.block_sparse_moe.experts.1.";
  for (const auto& [theirs, ours] :
       {std::pair("ffn_gate_exps", "w1"), {"ffn_up_exps", "w3"}, {"ffn_down_exps", "w2"}}) {
    EXPECT_TRUE(at::equal(dequantised(mixtral, concat("blk.0.", theirs, ".weight"))[1],
                          weight(concat(second, ours, ".weight"))));
  }
  EXPECT_EQ(*mixtral.find<std::string>("general.architecture"), "llama");
  EXPECT_EQ(*mixtral.find<std::string>("general.size_label"), "4x75K");
  EXPECT_EQ(*mixtral.find<uint32_t>("llama.expert_count"), 4);
  EXPECT_EQ(*mixtral.find<uint32_t>("llama.expert_used_count"), 2);
}

TEST_F(GgufModel, WithOtherExpertsThanItsConfigIsRefused) {
  nn::ModelOptions options = gguf_options("mixtral");
  export_as(write(options), TensorType::kF32);
  options.num_experts = 3;
  root_.write("config.json", checkpoint::hugging_face_config(options).dump());
  const std::string text = error_of([&] { import(root_ / "config.json"); }).second;
  EXPECT_THAT(text, HasSubstr("missing: model.layers.0.block_sparse_moe.experts.0.w1.weight"));
  EXPECT_THAT(text, HasSubstr("unexpected: blk.0.ffn_down_exps.weight"));
  options = gguf_options("llama");
  root_.write("config.json", checkpoint::hugging_face_config(options).dump());
  EXPECT_THAT(error_of([&] { import(root_ / "config.json"); }).second,
              HasSubstr("missing: model.layers.0.mlp.down_proj.weight"));
}

/// Files of others may lack what llama.cpp has defaults for, which are not those of transformers.
TEST_F(GgufModel, HasLlamaCppsDefaultsWhereItSaysNothing) {
  nn::ModelOptions options = gguf_options("gpt_neox");
  options.partial_rotary_factor = 1;
  const auto without = [&](const std::string& key) {
    std::string file_text = util::read_file(file());
    const size_t place = file_text.find(key);
    ASSERT_NE(place, std::string::npos) << key;
    // Of another architecture, and so ignored.
    root_.write("model.gguf", file_text.replace(place, 1, "x"));
  };
  export_as(write(options), TensorType::kF32);
  without("gptneox.rope.dimension_count");
  EXPECT_EQ(import().options.partial_rotary_factor, 1);
  options = gguf_options("smollm3");
  export_as(write(options), TensorType::kF32);
  without("smollm3.rope.freq_base");
  EXPECT_EQ(import().options.rope_theta, 10000);
}

TEST_F(GgufModel, ThatOursCannotComputeIsRefused) {
  const checkpoint::StoredModel model = write(gguf_options("llama"));
  export_as(model, TensorType::kF32);
  const std::string whole = util::read_file(file());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    const size_t place = changed.find(from);
    ASSERT_NE(place, std::string::npos);
    root_.write("model.gguf", changed.replace(place, from.size(), to));
  };
  with("llama.rope.freq_base", "llama.rope.freq_bass");
  expect_refused(
      "\"llama.rope.freq_bass\": 10000.0 describes something that this version cannot compute; if it is right, "
      "give the model's config.json with `config`");
  EXPECT_NO_THROW(import(root_ / "hf/config.json"));
  fs::remove_all(root_ / "imported");
  with("llama.block_count", "llama.block_coumt");
  expect_refused("\"llama.block_count\" must be there, but is missing");
  with("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight");
  expect_refused("missing: model.layers.1.mlp.up_proj.weight; unexpected: blk.1.ffn_xx.weight");
  with(std::string("\5\0\0\0\0\0\0\0llama", 13), std::string("\5\0\0\0\0\0\0\0gemma", 13));
  expect_refused(
      "\"general.architecture\" must be one of \"ernie4_5\", \"exaone4\", \"gemma2\", \"gemma3\", \"glm4\", \"gpt2\", \"gptneox\", \"granite\", "
      "\"llama\", \"olmo2\", \"phi3\", \"qwen2\", \"qwen3\", \"qwen3moe\", \"seed_oss\", \"smollm3\", but is \"gemma\"");
  with(std::string("\5\0\0\0\0\0\0\0model", 13), std::string("\5\0\0\0\0\0\0\0mmprj", 13));
  expect_refused("must be a model, but its \"general.type\" is \"mmprj\"");
}

/// As llama.cpp's mixtures: each tensor has a type of its own.
TEST_F(GgufModel, OfMixedTypesIsImportedAsItsValues) {
  nn::ModelOptions options = gguf_options("llama");
  options.hidden_size = 256;
  options.intermediate_size = 512;
  export_as(write(options), TensorType::kF32);
  const std::map<std::string, TensorType> types = {
      {"token_embd", TensorType::kQ6_K}, {"output", TensorType::kQ5_0}, {"attn_q", TensorType::kQ4_K},
      {"attn_k", TensorType::kQ5_K},     {"attn_v", TensorType::kQ3_K}, {"attn_output", TensorType::kIq4Xs},
      {"ffn_gate", TensorType::kQ2_K},   {"ffn_up", TensorType::kQ5_1}, {"ffn_down", TensorType::kIq4Nl}};
  const Reader plain(file());
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : plain.tensors()) {
    tensors.push_back(tensor);
    for (const auto& [part, type] : types) {
      if (name == part + ".weight" || name.ends_with("." + part + ".weight")) tensors.back().type = type;
    }
  }
  Writer writer(root_ / "mixed.gguf", {plain.metadata().begin(), plain.metadata().end()}, tensors);
  for (const Tensor& tensor : tensors) {
    std::string bytes = random_bytes(bytes_of(tensor), tensors.size());
    if (!is_quantised(tensor.type)) plain.read(tensor, 0, bytes_of(tensor), bytes.data());
    writer.append(bytes.data(), bytes_of(tensor));
  }
  writer.finish();
  fs::rename(root_ / "mixed.gguf", file());
  expect_values_of(Reader(file()), import({}, 3));
  fs::remove_all(root_ / "imported");
  checkpoint::import_model(
      {.source = file(), .config = {}, .output = root_ / "imported", .dtype = at::kBFloat16});
  expect_values_of(Reader(file()), checkpoint::open_model(root_ / "imported"), at::kBFloat16);
}

TEST_F(GgufModel, WithAHeadOfItsOwnIsNotTheOneOfAConfigThatTiesIt) {
  nn::ModelOptions options = gguf_options("llama");
  export_as(write(options), TensorType::kF32);
  options.tie_word_embeddings = true;
  std::ofstream(root_ / "tied.json") << checkpoint::hugging_face_config(options).dump();
  const auto [kind, text] = error_of([&] { import(root_ / "tied.json"); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text,
              ::testing::AllOf(HasSubstr("lm_head.weight"), HasSubstr("\"tie_word_embeddings\": false")));
}

}  // namespace
}  // namespace fsdp::gguf
