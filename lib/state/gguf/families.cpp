#include "state/gguf/families.h"

#include "base/util/error.h"
#include "base/util/text.h"
#include "state/hugging_face/hugging_face_config.h"

namespace fsdp::gguf {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

using Keys = std::vector<KeyRule>;

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr auto kNumber = KeyRule::Kind::kNumber;
constexpr auto kSize = KeyRule::Kind::kSize;
constexpr auto kFlag = KeyRule::Kind::kFlag;
constexpr auto kRotaryWidth = KeyRule::Kind::kRotaryWidth;

const KeyRule kWindow = {"attention.sliding_window", "sliding_window", kSize, true};

const Keys kDecoder = {
    {"vocab_size", "vocab_size", kSize, true},    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},          {"block_count", "num_hidden_layers"},
    {"feed_forward_length", "intermediate_size"}, {"attention.head_count", "num_attention_heads"},
};

const Keys kGroupedHeads = {
    {"attention.head_count_kv", "num_key_value_heads", kSize, true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", kNumber},
    {"rope.freq_base", "rope_theta", kNumber, true},
};

const Keys kLlama = kDecoder + kGroupedHeads +
                    Keys{{"attention.key_length", "head_dim", kSize, true},
                         {"attention.value_length", "head_dim", kSize, true},
                         {"rope.dimension_count", "head_dim", kSize, true}};

const Keys kMixtral =
    kLlama +
    Keys{kWindow, {"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}};

const Keys kQwen3Moe = kLlama + Keys{{"expert_count", "num_experts"},
                                     {"expert_used_count", "num_experts_per_tok"},
                                     {"expert_feed_forward_length", "moe_intermediate_size"}};

const Keys kAlternatingWindows = {{"attention.sliding_window_pattern", kWindowPattern, kSize, true}};

const Keys kGemma2 = kLlama + kAlternatingWindows +
                     Keys{{"attention.sliding_window", "sliding_window"},
                          {"attn_logit_softcapping", "attn_logit_softcapping", kNumber},
                          {"final_logit_softcapping", "final_logit_softcapping", kNumber}};

const Keys kGemma3 = kLlama + kAlternatingWindows +
                     Keys{kWindow,
                          {"final_logit_softcapping", "final_logit_softcapping", kNumber, true},
                          {"rope.freq_base_swa", "rope_local_base_freq", kNumber, true}};

const Keys kGptNeox = kDecoder + Keys{{"attention.layer_norm_epsilon", "layer_norm_eps", kNumber},
                                      {"rope.dimension_count", "rotary_pct", kRotaryWidth, true},
                                      {"rope.freq_base", "rotary_emb_base", kNumber, true},
                                      {"use_parallel_residual", "use_parallel_residual", kFlag}};

const Keys kGpt2 = {
    {"vocab_size", "vocab_size", kSize, true},
    {"context_length", "n_positions"},
    {"embedding_length", "n_embd"},
    {"block_count", "n_layer"},
    {"feed_forward_length", "n_inner"},
    {"attention.head_count", "n_head"},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", kNumber},
};

std::vector<Family> make_families() {
  return {
      {.model_type = "llama",
       .architecture = "llama",
       .keys = kLlama + Keys{kWindow},
       .type_with_window = "mistral",
       .flags = {{"attention_bias", "blk.0.attn_q.bias"}, {"mlp_bias", "blk.0.ffn_up.bias"}},
       .rotates_neighbours = true,
       .scales_frequencies = true},
      {.model_type = "mixtral",
       .architecture = "llama",
       .keys = kMixtral,
       .rotates_neighbours = true,
       .scales_frequencies = true},
      {.model_type = "qwen2", .architecture = "qwen2", .keys = kLlama, .heads_fill_width = true},
      {.model_type = "qwen3",
       .architecture = "qwen3",
       .keys = kLlama,
       .fixed = {{"hidden_act", "silu"}, {"attention_bias", false}}},
      {.model_type = "qwen3_moe",
       .architecture = "qwen3moe",
       .keys = kQwen3Moe,
       .fixed = {{"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"norm_topk_prob", true},
                 {"decoder_sparse_step", 1}}},
      {.model_type = "gpt2", .architecture = "gpt2", .keys = kGpt2, .fixed = json::object()},
      {.model_type = "olmo2",
       .architecture = "olmo2",
       .keys = kLlama,
       .fixed = {{"hidden_act", "silu"}, {"attention_bias", false}, {"tie_word_embeddings", false}}},
      {.model_type = "smollm3",
       .architecture = "smollm3",
       .keys = kLlama,
       .fixed = {{"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"no_rope_layer_interval", 4}},
       .rotates_neighbours = true},
      {.model_type = "phi3",
       .architecture = "phi3",
       .keys = kDecoder + kGroupedHeads +
               Keys{{"rope.dimension_count", "partial_rotary_factor", kRotaryWidth, true}, kWindow}},
      {.model_type = "gemma2",
       .architecture = "gemma2",
       .keys = kGemma2,
       .fixed = {{"hidden_activation", "gelu_pytorch_tanh"},
                 {"attention_bias", false},
                 {"tie_word_embeddings", true}},
       .window_pattern = 2,
       .layers_with_other_scale = 46},
      {.model_type = "gemma3_text",
       .architecture = "gemma3",
       .keys = kGemma3,
       .fixed = {{"hidden_activation", "gelu_pytorch_tanh"}, {"attention_bias", false}},
       .window_pattern = 6,
       .layers_with_other_scale = 62},
      {.model_type = "gpt_neox",
       .architecture = "gptneox",
       .keys = kGptNeox,
       .fixed = {{"hidden_act", "gelu"}, {"attention_bias", true}, {"tie_word_embeddings", false}}},
  };
}

}  // namespace

const nn::Family& ours_of(const Family& family) {
  for (const checkpoint::HuggingFaceType& type : checkpoint::hugging_face_types()) {
    if (std::string_view(type.model_type) == family.model_type) return *nn::find_family(type.architecture);
  }
  FSDP_CHECK(false, family.model_type);
}

namespace {

std::vector<TensorRule> tensor_rules(const Family& family) {
  const nn::Family& ours = ours_of(family);
  const Stored norm = ours.norm == nn::NormKind::kRmsPlusOne ? Stored::kPlusOne : Stored::kSame;
  const Stored linear = ours.transposed ? Stored::kTransposed : Stored::kSame;
  const auto of_heads = [&](Stored stored) { return family.rotates_neighbours ? stored : linear; };
  std::vector<TensorRule> rules;
  std::string module, theirs;
  const auto add = [&](const std::string& name, const char* tensor, Stored stored = Stored::kSame) {
    if (!name.empty()) rules.push_back({concat(module, name), concat(theirs, tensor), stored});
  };
  add(ours.head, "output");
  module = ours.inner + ".";
  add(ours.tokens, "token_embd");
  add(ours.positions, "position_embd");
  add(ours.last_norm, "output_norm", norm);
  const std::string block = concat(module, ours.blocks, ".*.");
  theirs = "blk.*.";
  module = block;
  add(ours.norm_before_attention, "attn_norm", norm);
  add(ours.norm_after_attention, "post_attention_norm", norm);
  add(ours.norm_before_feed_forward, "ffn_norm", norm);
  add(ours.norm_after_feed_forward, "post_ffw_norm", norm);
  module = concat(block, ours.attention, ".");
  if (ours.qkv_form == nn::QkvForm::kSeparate) {
    add(ours.queries, "attn_q", of_heads(Stored::kQueryHeads));
    add(ours.keys, "attn_k", of_heads(Stored::kKeyHeads));
    add(ours.values, "attn_v", linear);
  } else {
    add(ours.queries, "attn_qkv", ours.qkv_form == nn::QkvForm::kByHead ? Stored::kQkvByHead : linear);
  }
  if (ours.query_key_norm != nn::QueryKeyNorm::kNone) {
    add("q_norm", "attn_q_norm", norm);
    add("k_norm", "attn_k_norm", norm);
  }
  add(ours.output, "attn_output", linear);
  module = concat(block, ours.feed_forward, ".");
  if (!ours.has_experts()) {
    add(ours.gate, "ffn_gate", linear);
    add(ours.up, "ffn_up", linear);
    add(ours.down, "ffn_down", linear);
    return rules;
  }
  add(ours.router, "ffn_gate_inp");
  module += ours.experts + ".#.";
  add(ours.gate, "ffn_gate_exps", Stored::kStacked);
  add(ours.up, "ffn_up_exps", Stored::kStacked);
  add(ours.down, "ffn_down_exps", Stored::kStacked);
  return rules;
}

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = [] {
    std::vector<Family> families = make_families();
    for (Family& family : families) family.tensors = tensor_rules(family);
    return families;
  }();
  return kFamilies;
}

std::string quoted_list(const std::vector<const char*>& words) {
  std::vector<std::string> quoted;
  for (const char* word : words) quoted.push_back(concat("\"", word, "\""));
  return util::join(quoted, ", ");
}

/// Of config.json, and of KeyRule::config_key.
json facts_of(const Family& family, const nn::ModelOptions& options) {
  json facts = checkpoint::hugging_face_config(options);
  if (nn::family_of(options).is_rotary()) facts["head_dim"] = nn::head_width(options);
  if (family.window_pattern > 0 && options.sliding_window == 0) facts["sliding_window"] = nullptr;
  if (options.sliding_window > 0 && options.sliding_window_pattern != family.window_pattern) {
    facts[kWindowPattern] = options.sliding_window_pattern;
  }
  return facts;
}

constexpr int64_t kMostExperts = 1024;  ///< LLAMA_MAX_EXPERTS

/// kUsage for what the architecture cannot compute.
void check_options(const Family& family, const nn::ModelOptions& options, const std::string& where) {
  const auto refuse = [&](const std::string& what, const std::string& why = "does not have") {
    fail(ErrorKind::kUsage, where, " ", what, ", which llama.cpp's architecture ", family.architecture, " ",
         why, "; export the model as safetensors");
  };
  const json facts = facts_of(family, options);
  for (const auto& [key, value] : family.fixed.items()) {
    const json found = facts.value(key, json());
    if (found != value) refuse(concat("has \"", key, "\": ", found.dump()));
  }
  for (const KeyRule& rule : family.keys) {
    if (!rule.optional && facts.value(rule.config_key, json()).is_null()) {
      refuse(concat("has no \"", rule.config_key, "\""), "needs");
    }
  }
  if (!family.scales_frequencies && options.rope_type == nn::RopeType::kLlama3) {
    refuse("has the rotary scaling of Llama 3");
  }
  if (family.heads_fill_width && nn::query_width(options) != options.hidden_size) {
    refuse("has heads whose widths do not add up to hidden_size");
  }
  if (options.num_experts > kMostExperts) {
    refuse(concat("has \"num_experts\": ", options.num_experts), concat("limits to ", kMostExperts));
  }
  const int64_t scalar = score_scalar(family, options.num_hidden_layers, options.hidden_size,
                                      options.num_attention_heads, nn::head_width(options));
  if (facts.value("query_pre_attn_scalar", scalar) != scalar) {
    refuse(concat("has \"query_pre_attn_scalar\": ", facts["query_pre_attn_scalar"].dump(), " instead of ",
                  scalar));
  }
}

}  // namespace

int64_t score_scalar(const Family& family, int64_t layers, int64_t hidden_size, int64_t heads,
                     int64_t head_width) {
  return layers == family.layers_with_other_scale ? hidden_size / heads : head_width;
}

const Family& family_of(const json& config, const nn::ModelOptions& options, const std::string& where) {
  const std::string type = config.value("model_type", "");
  std::vector<const char*> known;
  for (const Family& family : families()) {
    for (const char* each : {family.model_type, family.type_with_window}) {
      if (each == nullptr) continue;
      known.push_back(each);
      if (type != each) continue;
      check_options(family, options, where);
      return family;
    }
  }
  fail(ErrorKind::kUsage, where, ": \"model_type\" must be one of ", quoted_list(known),
       " for a GGUF file, but is ", json(type).dump(), "; export the model as safetensors");
}

const Family& family_of_architecture(const Reader& file) {
  const auto* named = file.find<std::string>("general.architecture");
  const std::string architecture = named == nullptr ? "" : *named;
  // Llama and Mixtral have one architecture, and only Mixtral has experts.
  const auto* experts = file.find<uint32_t>(concat(architecture, ".expert_count"));
  const bool has_experts = experts != nullptr && *experts > 0;
  const Family* found = nullptr;
  std::vector<const char*> known;
  for (const Family& family : families()) {
    const bool is_new = known.empty() || std::string_view(known.back()) != family.architecture;
    if (is_new) known.push_back(family.architecture);
    if (family.architecture != architecture) continue;
    if (found == nullptr || ours_of(family).has_experts() == has_experts) found = &family;
  }
  if (found != nullptr) return *found;
  fail(ErrorKind::kCheckpoint, file.path().string(), ": \"general.architecture\" must be one of ",
       quoted_list(known), ", but is ",
       json(architecture).dump(-1, ' ', true, json::error_handler_t::replace),
       "; this version cannot compute others");
}

void describe_model(const Family& family, const nn::ModelOptions& options, Metadata& metadata) {
  const json facts = facts_of(family, options);
  const std::string prefix = concat(family.architecture, ".");
  for (const KeyRule& rule : family.keys) {
    const json value = facts.value(rule.config_key, json());
    if (value.is_null()) continue;
    Value& put = metadata.emplace_back(prefix + rule.key, Value()).second;
    if (rule.kind == kSize) put = value.get<uint32_t>();
    if (rule.kind == kNumber) put = value.get<float>();
    if (rule.kind == kFlag) put = value.get<bool>();
    if (rule.kind == kRotaryWidth) put = static_cast<uint32_t>(nn::rotary_width(options));
  }
  if (options.rope_type == nn::RopeType::kLinear) {
    metadata.emplace_back(prefix + "rope.scaling.type", std::string("linear"));
    metadata.emplace_back(prefix + "rope.scaling.factor", static_cast<float>(options.rope_factor));
  }
}

}  // namespace fsdp::gguf
