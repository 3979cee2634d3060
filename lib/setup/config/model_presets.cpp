#include <algorithm>
#include <cstdint>

#include "base/util/error.h"
#include "setup/config/presets.h"

namespace fsdp::config {
namespace {

std::string gpt2(int64_t width, int64_t layers, int64_t heads) {
  return util::concat(
      "[model]\narchitecture = \"gpt2\"\nvocab_size = 50257\nhidden_size = ", width,
      "\nintermediate_size = ", 4 * width, "\nnum_hidden_layers = ", layers,
      "\nnum_attention_heads = ", heads,
      "\nmax_position_embeddings = 1024\nlayer_norm_epsilon = 1e-5\ntie_word_embeddings = true\n");
}

struct LlamaSizes {
  int64_t vocabulary, width, inner, layers, heads, key_value_heads, positions;
  const char* rope_theta;
  bool tied;
  const char* rms_norm_eps = "1e-5";
  const char* more = "";  ///< further lines
  const char* architecture = "llama";
};

/// Llama 3.2 extends positions to sixteen times the original length.
constexpr const char* kLlama32Rotary =
    "rope_type = \"llama3\"\nrope_factor = 32.0\nrope_low_freq_factor = 1.0\n"
    "rope_high_freq_factor = 4.0\nrope_original_length = 8192\n";
constexpr const char* kQwen2Biases = "qkv_bias = true\n";

struct PythiaSizes {
  int64_t width, layers, heads;
};

std::string pythia(const PythiaSizes& sizes) {
  return util::concat("[model]\narchitecture = \"gpt_neox\"\nvocab_size = 50304\nhidden_size = ", sizes.width,
                      "\nintermediate_size = ", 4 * sizes.width, "\nnum_hidden_layers = ", sizes.layers,
                      "\nnum_attention_heads = ", sizes.heads,
                      "\nmax_position_embeddings = 2048\nrope_theta = 10000.0\npartial_rotary_factor = 0.25\n"
                      "layer_norm_epsilon = 1e-5\nattention_bias = true\nuse_parallel_residual = true\n"
                      "hidden_act = \"gelu\"\ntie_word_embeddings = false\n");
}

std::string llama(const LlamaSizes& sizes) {
  return util::concat("[model]\narchitecture = \"", sizes.architecture, "\"\nvocab_size = ", sizes.vocabulary,
                      "\nhidden_size = ", sizes.width, "\nintermediate_size = ", sizes.inner,
                      "\nnum_hidden_layers = ", sizes.layers, "\nnum_attention_heads = ", sizes.heads,
                      "\nnum_key_value_heads = ", sizes.key_value_heads,
                      "\nmax_position_embeddings = ", sizes.positions, "\nrope_theta = ", sizes.rope_theta,
                      "\nrms_norm_eps = ", sizes.rms_norm_eps,
                      "\ntie_word_embeddings = ", sizes.tied ? "true" : "false", "\n", sizes.more);
}

/// Gemma's heads are 256 wide, in whatever width.
std::string gemma(const LlamaSizes& sizes, const char* more) {
  return llama(sizes) + "head_dim = 256\nquery_pre_attn_scalar = 256\nhidden_act = \"gelu_pytorch_tanh\"\n" +
         more;
}

constexpr const char* kGemma3 =
    "sliding_window = 512\nsliding_window_pattern = 6\nrope_local_base_freq = 10000.0\n";

/// Qwen3's heads are 128 wide, in whatever width.
std::string qwen3(LlamaSizes sizes) {
  sizes.architecture = "qwen3";
  return llama(sizes) + "head_dim = 128\n";
}

constexpr const char* kMixtral = "num_experts = 8\nnum_experts_per_tok = 2\nrouter_aux_loss_coef = 0.02\n";
constexpr const char* kQwen3Moe =
    "head_dim = 128\nnum_experts = 128\nnum_experts_per_tok = 8\nmoe_intermediate_size = 768\n"
    "norm_topk_prob = true\nrouter_aux_loss_coef = 0.001\n";

std::vector<ModelPreset> make_model_presets() {
  return {
      {"gpt2-124m", gpt2(768, 12, 12)},
      {"gpt2-350m", gpt2(1024, 24, 16)},
      {"gpt2-774m", gpt2(1280, 36, 20)},
      {"gpt2-1.5b", gpt2(1600, 48, 25)},
      {"llama-15m", llama({32000, 288, 768, 6, 6, 6, 256, "10000.0", true})},
      {"llama-110m", llama({32000, 768, 2048, 12, 12, 12, 1024, "10000.0", true})},
      {"llama3-8b", llama({128256, 4096, 14336, 32, 32, 8, 8192, "500000.0", false})},
      {"llama3-70b", llama({128256, 8192, 28672, 80, 64, 8, 8192, "500000.0", false})},
      {"llama3.2-1b",
       llama({128256, 2048, 8192, 16, 32, 8, 131072, "500000.0", true, "1e-5", kLlama32Rotary})},
      {"llama3.2-3b",
       llama({128256, 3072, 8192, 28, 24, 8, 131072, "500000.0", true, "1e-5", kLlama32Rotary})},
      {"qwen2.5-0.5b", llama({151936, 896, 4864, 24, 14, 2, 32768, "1000000.0", true, "1e-6", kQwen2Biases})},
      {"qwen2.5-1.5b",
       llama({151936, 1536, 8960, 28, 12, 2, 131072, "1000000.0", true, "1e-6", kQwen2Biases})},
      {"qwen2.5-3b", llama({151936, 2048, 11008, 36, 16, 2, 32768, "1000000.0", true, "1e-6", kQwen2Biases})},
      {"qwen2.5-7b",
       llama({152064, 3584, 18944, 28, 28, 4, 131072, "1000000.0", false, "1e-6", kQwen2Biases})},
      {"smollm2-135m", llama({49152, 576, 1536, 30, 9, 3, 8192, "100000.0", true})},
      {"smollm2-360m", llama({49152, 960, 2560, 32, 15, 5, 8192, "100000.0", true})},
      {"smollm2-1.7b", llama({49152, 2048, 8192, 24, 32, 32, 8192, "130000.0", true})},
      {"mistral-7b-v0.1",
       llama({32000, 4096, 14336, 32, 32, 8, 32768, "10000.0", false, "1e-5", "sliding_window = 4096\n"})},
      {"mistral-7b-v0.3", llama({32768, 4096, 14336, 32, 32, 8, 32768, "1000000.0", false})},
      {"qwen3-0.6b", qwen3({151936, 1024, 3072, 28, 16, 8, 40960, "1000000.0", true, "1e-6"})},
      {"qwen3-1.7b", qwen3({151936, 2048, 6144, 28, 16, 8, 40960, "1000000.0", true, "1e-6"})},
      {"qwen3-4b", qwen3({151936, 2560, 9728, 36, 32, 8, 40960, "1000000.0", true, "1e-6"})},
      {"qwen3-8b", qwen3({151936, 4096, 12288, 36, 32, 8, 40960, "1000000.0", false, "1e-6"})},
      {"mixtral-8x7b",
       llama({32000, 4096, 14336, 32, 32, 8, 32768, "1000000.0", false, "1e-5", kMixtral, "mixtral"})},
      {"qwen3-30b-a3b",
       llama({151936, 2048, 6144, 48, 32, 4, 40960, "1000000.0", false, "1e-6", kQwen3Moe, "qwen3_moe"})},
      {"olmo2-1b", llama({100352, 2048, 8192, 16, 16, 16, 4096, "500000.0", false, "1e-6", "", "olmo2"})},
      {"olmo2-7b", llama({100352, 4096, 11008, 32, 32, 32, 4096, "500000.0", false, "1e-6", "", "olmo2"})},
      {"smollm3-3b", llama({128256, 2048, 11008, 36, 16, 4, 65536, "5000000.0", true, "1e-6",
                            "no_rope_layer_interval = 4\n", "smollm3"})},
      {"phi3-mini-4k", llama({32064, 3072, 8192, 32, 32, 32, 4096, "10000.0", false, "1e-5",
                              "sliding_window = 2047\n", "phi3"})},
      {"phi4", llama({100352, 5120, 17920, 40, 40, 10, 16384, "250000.0", false, "1e-5", "", "phi3"})},
      {"gemma2-2b", gemma({256000, 2304, 9216, 26, 8, 4, 8192, "10000.0", true, "1e-6", "", "gemma2"},
                          "sliding_window = 4096\nsliding_window_pattern = 2\n"
                          "attn_logit_softcapping = 50.0\nfinal_logit_softcapping = 30.0\n")},
      {"gemma3-270m",
       gemma({262144, 640, 2048, 18, 4, 1, 32768, "1000000.0", true, "1e-6", "", "gemma3_text"}, kGemma3)},
      {"gemma3-1b",
       gemma({262144, 1152, 6912, 26, 4, 1, 32768, "1000000.0", true, "1e-6", "", "gemma3_text"}, kGemma3)},
      {"pythia-160m", pythia({768, 12, 12})},
      {"pythia-1b", pythia({2048, 16, 8})},
      {"pythia-1.4b", pythia({2048, 24, 16})}};
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> all = make_model_presets();
  return all;
}

const ModelPreset* find_model_preset(std::string_view name) {
  const auto found = std::find_if(model_presets().begin(), model_presets().end(),
                                  [&](const ModelPreset& preset) { return preset.name == name; });
  return found == model_presets().end() ? nullptr : &*found;
}

}  // namespace fsdp::config
