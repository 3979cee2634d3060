#include "model/families/families.h"

#include <algorithm>

#include "base/util/error.h"

namespace fsdp::nn {
namespace {

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<std::string> kRotary = {
    "rope_theta",          "rope_type", "rope_factor", "rope_low_freq_factor", "rope_high_freq_factor",
    "rope_original_length"};
/// Of all that began as a llama.
const std::vector<std::string> kLlama = {"num_key_value_heads", "hidden_act", "rms_norm_eps"};
const std::vector<std::string> kExperts = {"num_experts", "num_experts_per_tok"};
const std::vector<std::string> kGemma = {"head_dim",
                                         "attention_bias",
                                         "sliding_window",
                                         "sliding_window_pattern",
                                         "query_pre_attn_scalar",
                                         "final_logit_softcapping"};

/// Gemma 2 (Gemma Team: Gemma 2, 2024): norms before and after each layer.
Family gemma(const char* architecture, const std::vector<std::string>& more) {
  return {.architecture = architecture,
          .options = kLlama + kRotary + kGemma + more,
          .norm = NormKind::kRmsPlusOne,
          .scaled_embeddings = true,
          .norm_after_attention = "post_attention_layernorm",
          .norm_before_feed_forward = "pre_feedforward_layernorm",
          .norm_after_feed_forward = "post_feedforward_layernorm"};
}

std::vector<Family> make_families() {
  Family gemma3 = gemma("gemma3_text", {"rope_local_base_freq"});
  gemma3.query_key_norm = QueryKeyNorm::kOfHead;
  return {
      // Touvron et al.: LLaMA, 2023, section 2.2. With qkv_bias a Qwen2, with sliding_window a Mistral.
      {.architecture = "llama",
       .options =
           kLlama + kRotary +
           std::vector<std::string>{"head_dim", "attention_bias", "qkv_bias", "mlp_bias", "sliding_window"}},
      // Radford et al.: Language Models are Unsupervised Multitask Learners, 2019, section 2.3.
      {.architecture = "gpt2",
       .options = {"layer_norm_epsilon"},
       .norm = NormKind::kLayer,
       .qkv_form = QkvForm::kSideBySide,
       .transposed = true,
       .biased_feed_forward = true,
       .inner = "transformer",
       .tokens = "wte",
       .positions = "wpe",
       .blocks = "h",
       .last_norm = "ln_f",
       .norm_before_attention = "ln_1",
       .norm_before_feed_forward = "ln_2",
       .norms_come_first = true,
       .attention = "attn",
       .queries = "c_attn",
       .output = "c_proj",
       .gate = "",
       .up = "c_fc",
       .down = "c_proj"},
      // Qwen Team: Qwen3, 2025.
      {.architecture = "qwen3",
       .options = kLlama + kRotary + std::vector<std::string>{"head_dim", "attention_bias"},
       .query_key_norm = QueryKeyNorm::kOfHead},
      // OLMo Team: 2 OLMo 2 Furious, 2025, section 2.
      {.architecture = "olmo2",
       .options = kLlama + kRotary + std::vector<std::string>{"attention_bias"},
       .query_key_norm = QueryKeyNorm::kOfAll,
       .norm_before_attention = "",
       .norm_after_attention = "post_attention_layernorm",
       .norm_before_feed_forward = "",
       .norm_after_feed_forward = "post_feedforward_layernorm"},
      // Hugging Face: SmolLM3, 2025; layers without positions: Yang et al.: Rope to Nope and Back Again,
      // 2025.
      {.architecture = "smollm3",
       .options =
           kLlama + kRotary +
           std::vector<std::string>{"head_dim", "attention_bias", "mlp_bias", "no_rope_layer_interval"}},
      // Abdin et al.: Phi-3, 2024.
      {.architecture = "phi3",
       .options = kLlama + std::vector<std::string>{"rope_theta", "partial_rotary_factor", "sliding_window"},
       .qkv_form = QkvForm::kSideBySide,
       .queries = "qkv_proj",
       .gate = "",
       .up = "gate_up_proj",
       .joined_gate = true},
      // Jiang et al.: Mixtral of Experts, 2024.
      {.architecture = "mixtral",
       .options = kLlama + kRotary + kExperts + std::vector<std::string>{"head_dim", "sliding_window"},
       .feed_forward = "block_sparse_moe",
       .gate = "w1",
       .up = "w3",
       .down = "w2",
       .router = "gate",
       .renormalizes = true},
      // Qwen Team: Qwen3, 2025.
      {.architecture = "qwen3_moe",
       .options = kLlama + kRotary + kExperts +
                  std::vector<std::string>{"head_dim", "attention_bias", "moe_intermediate_size",
                                           "norm_topk_prob", "decoder_sparse_step"},
       .query_key_norm = QueryKeyNorm::kOfHead,
       .router = "gate"},
      gemma("gemma2", {"attn_logit_softcapping"}),
      gemma3,
      // Black et al.: GPT-NeoX-20B, 2022, section 2; Biderman et al.: Pythia, 2023.
      {.architecture = "gpt_neox",
       .options = kRotary + std::vector<std::string>{"hidden_act", "attention_bias", "layer_norm_epsilon",
                                                     "partial_rotary_factor", "use_parallel_residual"},
       .norm = NormKind::kLayer,
       .qkv_form = QkvForm::kByHead,
       .biased_feed_forward = true,
       .inner = "gpt_neox",
       .tokens = "embed_in",
       .last_norm = "final_layer_norm",
       .head = "embed_out",
       .norms_come_first = true,
       .attention = "attention",
       .queries = "query_key_value",
       .output = "dense",
       .gate = "",
       .up = "dense_h_to_4h",
       .down = "dense_4h_to_h"}};
}

/// Every `interval`th layer.
bool is_every(int64_t interval, int64_t layer) { return interval > 0 && (layer + 1) % interval == 0; }

/// Collects the weights of modules.
class Shapes {
 public:
  explicit Shapes(const Family& family) : family_(family) {}

  void linear(const std::string& name, int64_t out, int64_t in, bool biased) {
    shapes[name + ".weight"] = family_.transposed ? std::vector{in, out} : std::vector{out, in};
    if (biased || family_.transposed) shapes[name + ".bias"] = {out};
  }
  void norm(const std::string& name, int64_t size) {
    shapes[name + ".weight"] = {size};
    if (family_.norm == NormKind::kLayer) shapes[name + ".bias"] = {size};
  }

  std::map<std::string, std::vector<int64_t>> shapes;

 private:
  const Family& family_;
};

}  // namespace

bool Family::has(std::string_view option) const {
  return std::find(options.begin(), options.end(), option) != options.end();
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = make_families();
  return all;
}

const Family* find_family(std::string_view architecture) {
  const auto found = std::find_if(families().begin(), families().end(),
                                  [&](const Family& family) { return family.architecture == architecture; });
  return found == families().end() ? nullptr : &*found;
}

const Family& family_of(const ModelOptions& options) {
  const Family* family = find_family(options.architecture);
  FSDP_CHECK(family != nullptr, options.architecture);
  return *family;
}

int64_t key_value_heads(const ModelOptions& options) {
  const Family* family = find_family(options.architecture);
  const bool reads = family == nullptr || family->has("num_key_value_heads");
  return reads ? options.num_key_value_heads : options.num_attention_heads;
}

int64_t head_width(const ModelOptions& options) {
  return options.head_dim > 0 ? options.head_dim : options.hidden_size / options.num_attention_heads;
}
int64_t query_width(const ModelOptions& options) { return options.num_attention_heads * head_width(options); }
int64_t key_width(const ModelOptions& options) { return key_value_heads(options) * head_width(options); }

int64_t rotary_width(const ModelOptions& options) {
  return static_cast<int64_t>(static_cast<double>(head_width(options)) * options.partial_rotary_factor);
}

bool has_qkv_bias(const ModelOptions& options) {
  return options.attention_bias || options.qkv_bias || family_of(options).transposed;
}
bool has_output_bias(const ModelOptions& options) {
  return options.attention_bias || family_of(options).transposed;
}
bool has_feed_forward_bias(const ModelOptions& options) {
  return options.mlp_bias || family_of(options).biased_feed_forward;
}

bool is_local_layer(const ModelOptions& options, int64_t layer) {
  return !is_every(options.sliding_window_pattern, layer);
}
int64_t window_of_layer(const ModelOptions& options, int64_t layer) {
  return is_local_layer(options, layer) ? options.sliding_window : 0;
}
bool is_rotary_layer(const ModelOptions& options, int64_t layer) {
  return family_of(options).is_rotary() && !is_every(options.no_rope_layer_interval, layer);
}

bool is_expert_layer(const ModelOptions& options, int64_t layer) {
  return family_of(options).has_experts() && is_every(options.decoder_sparse_step, layer);
}
int64_t expert_width(const ModelOptions& options) {
  return family_of(options).has("moe_intermediate_size") ? options.moe_intermediate_size
                                                         : options.intermediate_size;
}
double aux_loss_coef(const ModelOptions& options) {
  const Family* family = find_family(options.architecture);
  return family != nullptr && family->has_experts() ? options.router_aux_loss_coef : 0;
}
int64_t feed_forward_elements(const ModelOptions& options, int64_t layer) {
  const int64_t hidden = options.hidden_size, matrices = family_of(options).is_gated() ? 3 : 2;
  if (!is_expert_layer(options, layer)) return matrices * hidden * options.intermediate_size;
  return options.num_experts * hidden * (matrices * expert_width(options) + 1);
}

std::map<std::string, std::vector<int64_t>> weight_shapes(const ModelOptions& options) {
  const Family& family = family_of(options);
  const int64_t hidden = options.hidden_size;
  const int64_t queries = query_width(options), keys = key_width(options);
  const bool biased = has_qkv_bias(options), has_mlp_bias = has_feed_forward_bias(options);
  Shapes all(family);
  if (!options.tie_word_embeddings) all.shapes[family.head_weight()] = {options.vocab_size, hidden};
  all.shapes[family.token_weight()] = {options.vocab_size, hidden};
  if (!family.is_rotary()) {
    all.shapes[util::concat(family.inner, ".", family.positions, ".weight")] = {
        options.max_position_embeddings, hidden};
  }
  all.norm(util::concat(family.inner, ".", family.last_norm), hidden);
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    const std::string block = util::concat(family.inner, ".", family.blocks, ".", i, ".");
    for (const std::string* norm : {&family.norm_before_attention, &family.norm_after_attention,
                                    &family.norm_before_feed_forward, &family.norm_after_feed_forward}) {
      if (!norm->empty()) all.norm(block + *norm, hidden);
    }
    const std::string attention = block + family.attention + ".",
                      feed_forward = block + family.feed_forward + ".";
    if (family.qkv_form == QkvForm::kSeparate) {
      all.linear(attention + family.queries, queries, hidden, biased);
      all.linear(attention + family.keys, keys, hidden, biased);
      all.linear(attention + family.values, keys, hidden, biased);
    } else {
      all.linear(attention + family.queries, queries + 2 * keys, hidden, biased);
    }
    all.linear(attention + family.output, hidden, queries, has_output_bias(options));
    if (family.query_key_norm != QueryKeyNorm::kNone) {
      const bool of_head = family.query_key_norm == QueryKeyNorm::kOfHead;
      all.norm(attention + "q_norm", of_head ? head_width(options) : queries);
      all.norm(attention + "k_norm", of_head ? head_width(options) : keys);
    }
    const auto add_feed_forward = [&](const std::string& name, int64_t inner) {
      if (!family.gate.empty()) all.linear(name + family.gate, inner, hidden, has_mlp_bias);
      all.linear(name + family.up, family.joined_gate ? 2 * inner : inner, hidden, has_mlp_bias);
      all.linear(name + family.down, hidden, inner, has_mlp_bias);
    };
    if (!is_expert_layer(options, i)) {
      add_feed_forward(feed_forward, options.intermediate_size);
      continue;
    }
    all.linear(feed_forward + family.router, options.num_experts, hidden, /*biased=*/false);
    for (int64_t expert = 0; expert < options.num_experts; ++expert) {
      add_feed_forward(util::concat(feed_forward, family.experts, ".", expert, "."), expert_width(options));
    }
  }
  return all.shapes;
}

}  // namespace fsdp::nn
