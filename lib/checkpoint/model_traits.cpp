#include "checkpoint/model_traits.h"

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

/// When a value asks for nothing.
enum class Neutral { kOne, kOff };

struct Trait {
  const char* key;
  Neutral neutral;
  const char* meaning;
};

constexpr Trait kTraits[] = {
    {"partial_rotary_factor", Neutral::kOne, "rotary positions for a part of each head"},
    {"rotary_pct", Neutral::kOne, "rotary positions for a part of each head"},
    {"embedding_multiplier", Neutral::kOne, "scaled embeddings"},
    {"residual_multiplier", Neutral::kOne, "scaled residuals"},
    {"attention_multiplier", Neutral::kOff, "attention scaled in its own way"},
    {"query_pre_attn_scalar", Neutral::kOff, "attention scaled in its own way"},
    {"logits_scaling", Neutral::kOne, "scaled logits"},
    {"logit_scale", Neutral::kOne, "scaled logits"},
    {"final_logit_softcapping", Neutral::kOff, "a soft cap of logits"},
    {"attn_logit_softcapping", Neutral::kOff, "a soft cap of attention"},
    {"use_qk_norm", Neutral::kOff, "norms of queries and keys"},
    {"qk_norm", Neutral::kOff, "norms of queries and keys"},
    {"qk_layernorm", Neutral::kOff, "norms of queries and keys"},
    {"use_parallel_residual", Neutral::kOff, "attention and feed-forward side by side"},
    {"parallel_attn", Neutral::kOff, "attention and feed-forward side by side"},
    {"attention_chunk_size", Neutral::kOff, "attention in chunks"},
    {"is_encoder_decoder", Neutral::kOff, "an encoder"},
};

constexpr std::pair<const char*, const char*> kExpertKeys[] = {
    {"num_local_experts", "experts"}, {"num_experts", "experts"}, {"n_routed_experts", "experts"}};

bool is_neutral(const json& value, Neutral neutral) {
  if (value.is_null()) return true;
  if (neutral == Neutral::kOne) return value == 1;
  return value == false || value == 0;
}

/// Of a list that has an entry for each layer.
bool all_are(const json& list, const std::vector<json>& allowed) {
  return std::all_of(list.begin(), list.end(), [&](const json& entry) {
    return std::find(allowed.begin(), allowed.end(), entry) != allowed.end();
  });
}

}  // namespace

void refuse_unsupported_traits(const json& config, const std::string& where) {
  std::vector<std::string> found;
  const auto add = [&](const char* key, const char* meaning) {
    std::string value = config[key].dump(-1, ' ', true, json::error_handler_t::replace);
    constexpr size_t kLongest = 60;
    if (value.size() > kLongest) value = value.substr(0, kLongest) + "...";
    found.push_back(concat("\"", key, "\": ", value, " (", meaning, ")"));
  };
  for (const Trait& trait : kTraits) {
    if (config.contains(trait.key) && !is_neutral(config[trait.key], trait.neutral)) {
      add(trait.key, trait.meaning);
    }
  }
  for (const auto& [key, meaning] : kExpertKeys) {
    if (config.contains(key) && !is_neutral(config[key], Neutral::kOff) && config[key] != 1)
      add(key, meaning);
  }
  // 1 where a layer has them.
  if (config.contains("no_rope_layers") && !all_are(config["no_rope_layers"], {1, true})) {
    add("no_rope_layers", "layers without rotary positions");
  }
  // All layers of Mistral have the window of "sliding_window", or none has.
  std::vector<json> layer_types = {"full_attention"};
  if (config.value("model_type", json()) == "mistral") layer_types = {"full_attention", "sliding_attention"};
  if (config.contains("layer_types") && !all_are(config["layer_types"], layer_types)) {
    add("layer_types", "layers with other kinds of attention");
  }
  if (found.empty()) return;
  util::fail(util::ErrorKind::kCheckpoint, where,
             ": expected a model with nothing that this version cannot compute; found ",
             util::join(found, ", "), "; train it with a program that knows ",
             found.size() > 1 ? "these" : "it");
}

std::string unsupported_type(const std::string& model_type) {
  constexpr const char* kQkNorm = "it has norms of queries and keys";
  constexpr const char* kExperts = "it has experts";
  constexpr const char* kGemma = "it scales embeddings and its norms add one to their weights";
  constexpr const char* kParallel = "it has attention and feed-forward side by side";
  constexpr const char* kLayerNorm = "it has layer norms with rotary positions";
  constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"qwen3", kQkNorm},
      {"qwen3_moe", "it has norms of queries and keys, and experts"},
      {"olmo2", "it has norms of queries and keys, and norms behind attention and feed-forward"},
      {"olmo3", "it has norms of queries and keys, and norms behind attention and feed-forward"},
      {"olmo", "it has norms without weights"},
      {"granite", "it has multipliers of embeddings, attention, residuals and logits"},
      {"granitemoe", "it has multipliers of embeddings, attention, residuals and logits, and experts"},
      {"gemma", kGemma},
      {"gemma2", "it scales embeddings, caps logits softly, and has four norms a block"},
      {"gemma3", "it scales embeddings, and has norms of queries and keys and four norms a block"},
      {"gemma3_text", "it scales embeddings, and has norms of queries and keys and four norms a block"},
      {"stablelm", "it has layer norms, and rotary positions for a part of each head"},
      {"smollm3", "it has layers without rotary positions"},
      {"phi", "it has rotary positions for a part of each head, and parallel blocks"},
      {"phi3", "it stores queries, keys and values as one weight"},
      {"gpt_neox", "it has parallel blocks, and rotary positions for a part of each head"},
      {"gptj", kParallel},
      {"falcon", kParallel},
      {"cohere", kParallel},
      {"cohere2", kParallel},
      {"starcoder2", kLayerNorm},
      {"mixtral", kExperts},
      {"qwen2_moe", kExperts},
      {"deepseek_v2", "it has experts and latent attention"},
      {"deepseek_v3", "it has experts and latent attention"},
      {"gpt_oss", "it has experts and attention sinks"},
      {"llama4_text", "it has experts, and layers without rotary positions"},
      {"llama4", "it has experts, and layers without rotary positions"},
      {"opt", "it has learned positions with an offset, and ReLU"},
      {"gpt_neo", "it has layers of local attention"},
      {"bloom", "it has ALiBi in place of positions"},
      {"mpt", "it has ALiBi in place of positions"}};
  for (const auto& [type, what] : kTypes) {
    if (type == model_type) return what;
  }
  return "";
}

}  // namespace fsdp::checkpoint
