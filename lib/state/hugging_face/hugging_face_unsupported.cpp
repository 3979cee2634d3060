#include "state/hugging_face/hugging_face_unsupported.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"

namespace fsdp::checkpoint {
using nlohmann::json;

namespace {

/// The value with which a key has no effect.
enum class Neutral { kOne, kOff, kOffOrOne };

struct Trait {
  const char* key;
  Neutral neutral;
  const char* meaning;
  const char* option = nullptr;  ///< option of families that have the trait, if it is not `key`
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
    {"clip_qkv", Neutral::kOff, "clipped queries, keys and values"},
    {"pruned_heads", Neutral::kOff, "layers that lack heads"},
    {"full_attn_mod", Neutral::kOffOrOne, "layers with other kinds of attention"},
    {"interpolate_factor", Neutral::kOffOrOne, "interpolated positions"},
    {"compression_config", Neutral::kOff, "quantized weights"},
};

/// Beginnings of keys that are for other programs or describe how the file was made.
constexpr const char* kPrefixesWithoutEffect[] = {"_", "fsdp_", "unsloth_", "transformers.js"};

constexpr const char* kKeysWithoutEffect[] = {
    // The model and its file.
    "architectures", "auto_map", "model_type", "dtype", "torch_dtype", "transformers_version",
    "is_llama_config", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
    "task_specific_params", "language",
    // Programs that compute it.
    "attn_implementation", "use_flash_attn", "use_flash_attention", "use_flash_attention_2", "pretraining_tp",
    "torchscript", "use_bfloat16", "gradient_checkpointing", "chunk_size_feed_forward",
    "reorder_and_upcast_attn", "use_cache", "cache_implementation", "num_logits_to_keep", "return_dict",
    "output_attentions", "output_scores", "output_hidden_states", "output_past", "output_router_logits",
    "return_dict_in_generate", "tf_legacy_loss", "initializer_cutoff_factor", "keys_to_ignore_at_inference",
    "is_decoder",
    // Tokens, and generation of text.
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "tokenizer_class", "model_max_length",
    "max_sequence_length", "seq_length", "prefix", "max_length", "max_new_tokens", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "num_return_sequences", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "exponential_decay_length_penalty", "remove_invalid_values",
    // Heads of other tasks, and an encoder beside the model.
    "classifier_dropout", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "tie_encoder_decoder", "cross_attention_hidden_size",
    // Sizes whose meaning depends on other keys, and layers that the weights show.
    "n_ctx", "original_max_position_embeddings", "max_window_layers", "sliding_window", "head_dim",
    "attention_bias", "mlp_bias", "qkv_bias", "lm_head_bias", "hidden_act", "embd_pdrop", "no_rope_layers",
    "no_rope_layer_interval", "layer_types", "router_aux_loss_coef"};

bool is_neutral(const json& value, Neutral neutral) {
  return value.is_null() || (value.is_structured() && value.empty()) ||
         (neutral != Neutral::kOff && value == 1) ||
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
    found.push_back(concat(shown_entry(key, config[key]), " (", meaning, ")"));
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
  const json name = config.value("model_type", json());
  const nn::ModelType* type = name.is_string() ? nn::find_model_type(name.get<std::string>()) : nullptr;
  std::vector<json> layer_types = {"full_attention"};
  if (type != nullptr && type->lists_windows) layer_types.emplace_back("sliding_attention");
  if (!family.has("sliding_window_pattern") && config.contains("layer_types") &&
      !all_are(config["layer_types"], layer_types)) {
    add("layer_types", "layers with other kinds of attention");
  }
  if (found.empty()) return;
  fail(ErrorKind::kCheckpoint, where, ": this version cannot compute ", util::join(found, ", "),
       "; use a program that supports ", found.size() > 1 ? "these" : "it");
}

std::vector<std::string> keys_without_effect(const json& config) {
  std::vector<std::string> keys(std::begin(kKeysWithoutEffect), std::end(kKeysWithoutEffect));
  for (const Trait& trait : kTraits) keys.emplace_back(trait.key);
  for (const auto& [key, value] : config.items()) {
    for (const char* prefix : kPrefixesWithoutEffect) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
  }
  return keys;
}

std::string shown_entry(const std::string& key, const json& value) {
  const auto text = [](const json& of) {
    constexpr size_t kLongest = 60;
    const std::string shown = of.dump(-1, ' ', true, json::error_handler_t::replace);
    return shown.size() > kLongest ? shown.substr(0, kLongest) + "..." : shown;
  };
  return concat(text(key), ": ", text(value));
}

void report_unknown_keys(const std::vector<std::string>& entries, bool has_own_code,
                         const std::string& where) {
  const std::string listed = util::name_list(entries);
  if (has_own_code) {
    fail(
        ErrorKind::kCheckpoint, where,
        ": the model comes with code of its own (\"auto_map\"), which may read keys that this version does not "
        "know: ",
        listed, "; remove them from the file if the model computes the same without them");
  }
  static std::mutex mutex;
  static std::set<std::string> reported;
  const std::lock_guard lock(mutex);
  if (!reported.insert(listed).second) return;
  util::log_warning(
      concat(where, ": keys that this version does not know are ignored, as transformers does: ", listed));
}

std::string unsupported_type(const std::string& model_type) {
  constexpr const char* kParallel = "it has parallel attention and feed-forward";
  constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"olmo", "it has norms without weights"},
      {"granitemoe", "it has multipliers of embeddings, attention, residuals and logits, and experts"},
      {"gemma", "it scales embeddings and its norms add one to their weights"},
      {"gemma3", "it reads images, and its text model, gemma3_text, is a part of it"},
      {"ministral", "it has layers with other kinds of attention"},
      {"gemma4", "it has embeddings for each layer, and heads whose widths differ between layers"},
      {"gemma4_text", "it has embeddings for each layer, and heads whose widths differ between layers"},
      {"qwen3_5", "it has layers of gated delta nets instead of attention"},
      {"qwen3_5_text", "it has layers of gated delta nets instead of attention"},
      {"qwen3_next", "it has layers of gated delta nets instead of attention"},
      {"lfm2", "it has layers of convolutions instead of attention"},
      {"apertus", "its activation, xIELU, has parameters"},
      {"arcee", "its activation is a squared ReLU"},
      {"nemotron", "its activation is a squared ReLU, and its norms add one to their weights"},
      {"hunyuan_v1_dense", "it has norms of queries and keys after their rotation"},
      {"ministral3", "it scales queries by their position"},
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
