#include "checkpoint/hugging_face_unsupported.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;

namespace {

/// The value with which a key has no effect.
enum class Neutral { kOne, kOff, kOffOrOne };

struct Trait {
  const char* key;
  Neutral neutral;
  const char* meaning;
  const char* option = nullptr;  ///< of families that have the trait, if it is not `key`
};

constexpr Trait kTraits[] = {
    {"partial_rotary_factor", Neutral::kOne, "rotary positions for a part of each head"},
    {"rotary_pct", Neutral::kOne, "rotary positions for a part of each head", "partial_rotary_factor"},
    {"embedding_multiplier", Neutral::kOne, "scaled embeddings"},
    {"residual_multiplier", Neutral::kOne, "scaled residuals"},
    {"attention_multiplier", Neutral::kOff, "a custom scale of attention"},
    {"query_pre_attn_scalar", Neutral::kOff, "a custom scale of attention"},
    {"logits_scaling", Neutral::kOne, "scaled logits"},
    {"logit_scale", Neutral::kOne, "scaled logits"},
    {"final_logit_softcapping", Neutral::kOff, "a soft cap of logits"},
    {"attn_logit_softcapping", Neutral::kOff, "a soft cap of attention"},
    {"use_qk_norm", Neutral::kOff, "norms of queries and keys"},
    {"qk_norm", Neutral::kOff, "norms of queries and keys"},
    {"qk_layernorm", Neutral::kOff, "norms of queries and keys"},
    {"use_parallel_residual", Neutral::kOff, "parallel attention and feed-forward"},
    {"parallel_attn", Neutral::kOff, "parallel attention and feed-forward"},
    {"attention_chunk_size", Neutral::kOff, "attention in chunks"},
    {"is_encoder_decoder", Neutral::kOff, "an encoder"},
    {"num_local_experts", Neutral::kOffOrOne, "experts", "num_experts"},
    {"num_experts", Neutral::kOffOrOne, "experts"},
    {"n_routed_experts", Neutral::kOffOrOne, "experts"},
    {"router_jitter_noise", Neutral::kOff, "noise in the router's input"},
};

bool is_neutral(const json& value, Neutral neutral) {
  return value.is_null() || (neutral != Neutral::kOff && value == 1) ||
         (neutral != Neutral::kOne && (value == false || value == 0));
}

/// `list` has an entry for each layer.
bool all_are(const json& list, const std::vector<json>& allowed) {
  return std::all_of(list.begin(), list.end(), [&](const json& entry) {
    return std::find(allowed.begin(), allowed.end(), entry) != allowed.end();
  });
}

}  // namespace

void refuse_unsupported_traits(const json& config, const nn::Family& family, const std::string& where) {
  std::vector<std::string> found;
  const auto add = [&](const char* key, const char* meaning) {
    std::string value = config[key].dump(-1, ' ', true, json::error_handler_t::replace);
    constexpr size_t kLongest = 60;
    if (value.size() > kLongest) value = value.substr(0, kLongest) + "...";
    found.push_back(concat("\"", key, "\": ", value, " (", meaning, ")"));
  };
  for (const Trait& trait : kTraits) {
    if (family.has(trait.option != nullptr ? trait.option : trait.key)) continue;
    if (config.contains(trait.key) && !is_neutral(config[trait.key], trait.neutral)) {
      add(trait.key, trait.meaning);
    }
  }
  // 1: the layer has rotary positions.
  if (!family.has("no_rope_layer_interval") && config.contains("no_rope_layers") &&
      !all_are(config["no_rope_layers"], {1, true})) {
    add("no_rope_layers", "layers without rotary positions");
  }
  // In Mistral, all layers have the window of "sliding_window" or none.
  std::vector<json> layer_types = {"full_attention"};
  if (config.value("model_type", json()) == "mistral") layer_types = {"full_attention", "sliding_attention"};
  if (!family.has("sliding_window_pattern") && config.contains("layer_types") &&
      !all_are(config["layer_types"], layer_types)) {
    add("layer_types", "layers with other kinds of attention");
  }
  if (found.empty()) return;
  util::fail(util::ErrorKind::kCheckpoint, where, ": this version cannot compute ", util::join(found, ", "),
             "; use a program that supports ", found.size() > 1 ? "these" : "it");
}

std::string unsupported_type(const std::string& model_type) {
  constexpr const char* kParallel = "it has parallel attention and feed-forward";
  constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"olmo3", "it has norms after attention and feed-forward, and layers with and without windows"},
      {"olmo", "it has norms without weights"},
      {"granite", "it has multipliers of embeddings, attention, residuals and logits"},
      {"granitemoe", "it has multipliers of embeddings, attention, residuals and logits, and experts"},
      {"gemma", "it scales embeddings and its norms add one to their weights"},
      {"gemma3", "it reads images, and its text model, gemma3_text, is a part of it"},
      {"ministral", "it has layers with other kinds of attention"},
      {"stablelm", "it has layer norms, and rotary positions for a part of each head"},
      {"phi", "it has rotary positions for a part of each head, and parallel blocks"},
      {"gptj", kParallel},
      {"falcon", kParallel},
      {"cohere", kParallel},
      {"cohere2", kParallel},
      {"starcoder2", "it has layer norms with rotary positions"},
      {"qwen2_moe", "it has experts that all tokens share"},
      {"deepseek_v2", "it has experts and latent attention"},
      {"deepseek_v3", "it has experts and latent attention"},
      {"gpt_oss", "it has experts and attention sinks"},
      {"llama4_text", "it has experts, and layers without rotary positions"},
      {"llama4", "it has experts, and layers without rotary positions"},
      {"opt", "it has learned positions with an offset, and ReLU"},
      {"gpt_neo", "it has layers of local attention"},
      {"bloom", "it has ALiBi instead of rotary positions"},
      {"mpt", "it has ALiBi instead of rotary positions"}};
  for (const auto& [type, what] : kTypes) {
    if (type == model_type) return what;
  }
  return "";
}

}  // namespace fsdp::checkpoint
