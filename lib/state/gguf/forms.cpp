#include "state/gguf/forms.h"

#include <set>

#include "base/util/error.h"
#include "base/util/text.h"
#include "state/gguf/rotary_scaling.h"
#include "state/hugging_face/hugging_face_config.h"

namespace fsdp::gguf {
using nlohmann::json;

namespace {

std::vector<TensorRule> tensor_rules(const nn::Family& ours, const nn::GgufArchitecture& form) {
  const Stored norm = ours.norm == nn::NormKind::kRmsPlusOne ? Stored::kPlusOne : Stored::kSame;
  const Stored linear = ours.transposed ? Stored::kTransposed : Stored::kSame;
  const bool interleaves = form.rotates_neighbours && !ours.rotates_neighbours;
  const auto of_heads = [&](Stored stored) { return interleaves ? stored : linear; };
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
  add(ours.norm_before_feed_forward, form.norm_before_feed_forward.c_str(), norm);
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

const std::vector<GgufForm>& forms() {
  static const std::vector<GgufForm> all = [] {
    std::vector<GgufForm> made;
    for (const nn::Family& family : nn::families()) {
      for (const nn::ModelType& type : family.types) {
        if (type.gguf.architecture.empty()) continue;
        made.push_back({type.gguf, &type, &family, tensor_rules(family, type.gguf)});
      }
    }
    return made;
  }();
  return all;
}

/// config.json with keys for all options of GgufKey.
json facts_of(const GgufForm& form, const nn::ModelOptions& options) {
  json facts = checkpoint::hugging_face_config(options);
  if (nn::family_of(options).is_rotary()) facts["head_dim"] = nn::head_width(options);
  if (form.window_pattern > 0 && options.sliding_window == 0) facts["sliding_window"] = nullptr;
  if (options.sliding_window > 0 && options.sliding_window_pattern != form.window_pattern) {
    facts[kWindowPattern] = options.sliding_window_pattern;
  }
  if (form.plain_windows && options.rope_local_base_freq > 0) {
    facts["rope_local_base_freq"] = options.rope_local_base_freq;
  }
  return facts;
}

constexpr int64_t kMostExperts = 1024;  ///< LLAMA_MAX_EXPERTS

/// Throws Error(kUsage) for what the architecture cannot compute.
void check_options(const GgufForm& form, const nn::ModelOptions& options, const std::string& where) {
  const auto refuse = [&](const std::string& what, const std::string& why = "does not have") {
    fail(ErrorKind::kUsage, where, " ", what, ", which llama.cpp's architecture ", form.architecture, " ",
         why, "; export the model as safetensors");
  };
  const json facts = facts_of(form, options);
  const json fixed = checkpoint::json_object(form.fixed);
  for (const auto& [key, value] : fixed.items()) {
    const json found = facts.value(key, json());
    if (found != value) refuse(concat("has \"", key, "\": ", found.dump()));
  }
  for (const nn::GgufKey& rule : form.keys) {
    const std::string key = config_key_of(form, rule);
    if (!rule.optional && facts.value(key, json()).is_null()) refuse(concat("has no \"", key, "\""), "needs");
  }
  if (!form.scales_frequencies && options.rope_type == nn::RopeType::kLlama3) {
    refuse("has the rotary scaling of Llama 3");
  }
  if (options.rope_type == nn::RopeType::kDynamic) refuse("has the rotary scaling dynamic");
  if (!form.has_longrope && options.rope_type == nn::RopeType::kLongrope) {
    refuse("has the rotary scaling longrope");
  }
  if (options.rope_type == nn::RopeType::kYarn) {
    // llama.cpp would also scale the layers with a window.
    if (form.family->has("rope_local_base_freq") && !form.plain_windows) {
      refuse("has YaRN and layers without it");
    }
    if (!options.rope_truncate) refuse("has \"truncate\": false");
    for (const auto& [key, member] : {std::pair("beta_fast", &nn::ModelOptions::rope_beta_fast),
                                      {"beta_slow", &nn::ModelOptions::rope_beta_slow}}) {
      const double theirs = nn::ModelOptions().*member;  // its architectures do not read the keys in the file
      if (options.*member != theirs) {
        refuse(concat("has \"", key, "\": ", options.*member), concat("always has as ", theirs));
      }
    }
    if (options.rope_factor < 1) refuse(concat("has YaRN with \"factor\": ", options.rope_factor));
  }
  const bool has_windows = options.sliding_window > 0;
  if (form.plain_windows && has_windows && options.rope_local_base_freq > 0 &&
      options.rope_local_base_freq != options.rope_theta) {
    refuse(concat("rotates by \"rope_theta\": ", options.rope_local_base_freq,
                  " in layers with a window and ", options.rope_theta, " in others"));
  }
  if (const int64_t layers = form.layers_with_windows; layers > 0) {
    const bool must_have = options.num_hidden_layers == layers;
    if (has_windows && !must_have) {
      refuse(concat("has windows in ", options.num_hidden_layers, " layers"),
             concat("has in models of ", layers, " layers alone"));
    }
    if (!has_windows && must_have) refuse(concat("has ", layers, " layers without windows"));
  }
  if (form.heads_fill_width && nn::query_width(options) != options.hidden_size) {
    refuse("has heads whose widths do not add up to hidden_size");
  }
  if (options.num_experts > kMostExperts) {
    refuse(concat("has \"num_experts\": ", options.num_experts), concat("limits to ", kMostExperts));
  }
  const int64_t scalar = score_scalar(form, options.num_hidden_layers, options.hidden_size,
                                      options.num_attention_heads, nn::head_width(options));
  if (facts.value("query_pre_attn_scalar", scalar) != scalar) {
    refuse(concat("has \"query_pre_attn_scalar\": ", facts["query_pre_attn_scalar"].dump(), " instead of ",
                  scalar));
  }
}

}  // namespace

std::string config_key_of(const GgufForm& form, const nn::GgufKey& key) {
  for (const nn::ConfigKey& each : form.type->keys) {
    if (each.option == key.option && each.direction == nn::ConfigKey::Direction::kBoth) return each.key;
  }
  return key.option;
}

int64_t score_scalar(const nn::GgufArchitecture& form, int64_t layers, int64_t hidden_size, int64_t heads,
                     int64_t head_width) {
  return layers == form.layers_with_other_scale ? hidden_size / heads : head_width;
}

const GgufForm& form_of(const json& config, const std::string& where) {
  const std::string type = config.value("model_type", "");
  std::vector<std::string> known;
  for (const GgufForm& form : forms()) {
    known.push_back(concat("\"", form.type->name, "\""));
    if (type == form.type->name) return form;
  }
  fail(ErrorKind::kUsage, where, ": \"model_type\" must be one of ", util::join(known, ", "),
       " for a GGUF file, but is ", json(type).dump(), "; export the model as safetensors");
}

const GgufForm& form_of(const json& config, const nn::ModelOptions& options, const std::string& where) {
  const GgufForm& form = form_of(config, where);
  check_options(form, options, where);
  return form;
}

void require_model(const Reader& file) {
  const auto refuse = [&](const auto&... what) {
    fail(ErrorKind::kCheckpoint, file.path().string(), what...);
  };
  if (const auto* type = file.find<std::string>("general.type"); type != nullptr && *type != "model") {
    refuse(" must be a model, but its \"general.type\" is ",
           json(*type).dump(-1, ' ', true, json::error_handler_t::replace), "; give the model itself");
  }
  if (const auto* count = file.find<uint32_t>("split.count"); count != nullptr && *count > 1) {
    refuse(" is one of ", *count, " files; join them with llama.cpp's llama-gguf-split --merge");
  }
}

const GgufForm& form_of(const Reader& file) {
  const auto* named = file.find<std::string>("general.architecture");
  const std::string name = named == nullptr ? "" : *named;
  // Llama and Mixtral have one architecture, and only Mixtral has experts.
  const auto* experts = file.find<uint32_t>(concat(name, ".expert_count"));
  const bool has_experts = experts != nullptr && *experts > 0;
  const GgufForm* found = nullptr;
  std::set<std::string> known;
  for (const GgufForm& each : forms()) {
    known.insert(concat("\"", each.architecture, "\""));
    const bool fits_better = found == nullptr || (each.family->has_experts() == has_experts &&
                                                  found->family->has_experts() != has_experts);
    if (each.architecture == name && fits_better) found = &each;
  }
  if (found != nullptr) return *found;
  fail(ErrorKind::kCheckpoint, file.path().string(), ": \"general.architecture\" must be one of ",
       util::join({known.begin(), known.end()}, ", "), ", but is ",
       json(name).dump(-1, ' ', true, json::error_handler_t::replace),
       "; this version cannot compute others");
}

void describe_model(const GgufForm& form, const nn::ModelOptions& options, Metadata& metadata) {
  const json facts = facts_of(form, options);
  const std::string prefix = concat(form.architecture, ".");
  for (const nn::GgufKey& rule : form.keys) {
    const json value = facts.value(config_key_of(form, rule), json());
    if (value.is_null()) continue;
    Value& put = metadata.emplace_back(prefix + rule.key, Value()).second;
    if (rule.option == kRotaryShare) {
      put = static_cast<uint32_t>(nn::rotary_width(options));
    } else if (value.is_boolean()) {
      put = value.get<bool>();
    } else if (value.is_number_float()) {
      put = value.get<float>();
    } else {
      put = value.get<uint32_t>();
    }
  }
  describe_scaling(options, prefix, metadata);
}

}  // namespace fsdp::gguf
