#include "gguf/families.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "checkpoint/hugging_face_config.h"
#include "nn/families.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::gguf {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr TensorRule kLlamaTensors[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"model.layers.*.input_layernorm", "blk.*.attn_norm"},
    {"model.layers.*.self_attn.q_proj", "blk.*.attn_q", Stored::kQueryHeads},
    {"model.layers.*.self_attn.k_proj", "blk.*.attn_k", Stored::kKeyHeads},
    {"model.layers.*.self_attn.v_proj", "blk.*.attn_v"},
    {"model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"},  // of Qwen3
    {"model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"},
    {"model.layers.*.self_attn.o_proj", "blk.*.attn_output"},
    {"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm"},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate"},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up"},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down"},
};

constexpr TensorRule kGpt2Tensors[] = {
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"},
    {"lm_head", "output"},
    {"transformer.h.*.ln_1", "blk.*.attn_norm"},
    {"transformer.h.*.attn.c_attn", "blk.*.attn_qkv", Stored::kTransposed},
    {"transformer.h.*.attn.c_proj", "blk.*.attn_output", Stored::kTransposed},
    {"transformer.h.*.ln_2", "blk.*.ffn_norm"},
    {"transformer.h.*.mlp.c_fc", "blk.*.ffn_up", Stored::kTransposed},
    {"transformer.h.*.mlp.c_proj", "blk.*.ffn_down", Stored::kTransposed},
};

constexpr auto kNumber = KeyRule::Kind::kNumber;
constexpr auto kSize = KeyRule::Kind::kSize;

constexpr KeyRule kLlamaKeys[] = {
    {"vocab_size", "vocab_size", kSize, true},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"block_count", "num_hidden_layers"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads", kSize, true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", kNumber},
    {"attention.key_length", "head_dim", kSize, true},
    {"attention.value_length", "head_dim", kSize, true},
    {"attention.sliding_window", "sliding_window", kSize, true},
    {"rope.dimension_count", "head_dim", kSize, true},
    {"rope.freq_base", "rope_theta", kNumber, true},
};

constexpr KeyRule kGpt2Keys[] = {
    {"vocab_size", "vocab_size", kSize, true},
    {"context_length", "n_positions"},
    {"embedding_length", "n_embd"},
    {"block_count", "n_layer"},
    {"feed_forward_length", "n_inner"},
    {"attention.head_count", "n_head"},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", kNumber},
};

constexpr FlagRule kLlamaFlags[] = {
    {"attention_bias", "blk.0.attn_q.bias"},
    {"mlp_bias", "blk.0.ffn_up.bias"},
};

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {.model_types = {"llama", "mistral"},
       .architecture = "llama",
       .tensors = kLlamaTensors,
       .keys = kLlamaKeys,
       .flags = kLlamaFlags,
       .fixed = {{"hidden_act", "silu"}},
       .rotates_neighbours = true,
       .scales_frequencies = true,
       .has_rotary = true,
       .heads_fill_width = false},
      {.model_types = {"qwen2"},
       .architecture = "qwen2",
       .tensors = kLlamaTensors,
       .keys = kLlamaKeys,
       .flags = {},
       .fixed = {{"hidden_act", "silu"}},
       .rotates_neighbours = false,
       .scales_frequencies = false,
       .has_rotary = true,
       .heads_fill_width = true},
      {.model_types = {"qwen3"},
       .architecture = "qwen3",
       .tensors = kLlamaTensors,
       .keys = kLlamaKeys,
       .flags = {},
       .fixed = {{"hidden_act", "silu"}},
       .rotates_neighbours = false,
       .scales_frequencies = false,
       .has_rotary = true,
       .heads_fill_width = false},
      {.model_types = {"gpt2"},
       .architecture = "gpt2",
       .tensors = kGpt2Tensors,
       .keys = kGpt2Keys,
       .flags = {},
       .fixed = json::object(),
       .rotates_neighbours = false,
       .scales_frequencies = false,
       .has_rotary = false,
       .heads_fill_width = true},
  };
  return kFamilies;
}

/// A name by the pattern `to`, if it fits the pattern `from`.
std::optional<std::string> renamed(std::string_view name, std::string_view from, std::string_view to) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return std::nullopt;
  const std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  name = name.substr(0, dot);
  const size_t star = from.find('*');
  if (star == from.npos) return name == from ? std::optional(concat(to, kind)) : std::nullopt;
  const std::string_view head = from.substr(0, star), tail = from.substr(star + 1);
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) {
    return std::nullopt;
  }
  const std::string_view number = name.substr(head.size(), name.size() - head.size() - tail.size());
  if (!std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  const size_t place = to.find('*');
  return concat(to.substr(0, place), number, to.substr(place + 1), kind);
}

std::string quoted_list(const std::vector<const char*>& words) {
  std::vector<std::string> quoted;
  for (const char* word : words) quoted.push_back(concat("\"", word, "\""));
  return util::join(quoted, ", ");
}

}  // namespace

const Family& family_of(const json& config, const nn::ModelOptions& options, const std::string& where) {
  const std::string type = config.value("model_type", "");
  std::vector<const char*> known;
  for (const Family& family : families()) {
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
    if (std::find(family.model_types.begin(), family.model_types.end(), type) == family.model_types.end()) {
      continue;
    }
    const auto refuse = [&](const std::string& what) {
      fail(ErrorKind::kUsage, where, " ", what, ", which llama.cpp's architecture ", family.architecture,
           " cannot compute; export the model as safetensors");
    };
    const json ours = checkpoint::hugging_face_config(options);
    for (const auto& [key, value] : family.fixed.items()) {
      if (ours.value(key, json()) != value)
        refuse(concat("has \"", key, "\": ", ours.value(key, json()).dump()));
    }
    if (!family.scales_frequencies && options.rope_type == nn::RopeType::kLlama3) {
      refuse("has the rotary scaling of Llama 3");
    }
    if (family.heads_fill_width && nn::query_width(options) != options.hidden_size) {
      refuse("has heads whose widths do not add up to hidden_size");
    }
    return family;
  }
  fail(ErrorKind::kUsage, where, ": \"model_type\" must be one of ", quoted_list(known),
       " for a GGUF file, but is ", json(type).dump(), "; export the model as safetensors");
}

const Family& family_of_architecture(const std::string& architecture, const std::string& where) {
  std::vector<const char*> known;
  for (const Family& family : families()) {
    if (family.architecture == architecture) return family;
    known.push_back(family.architecture);
  }
  fail(ErrorKind::kCheckpoint, where, ": \"general.architecture\" must be one of ", quoted_list(known),
       ", but is ", json(architecture).dump(-1, ' ', true, json::error_handler_t::replace),
       "; this version cannot compute others");
}

namespace {

Stored stored_as(const Family& family, const TensorRule& rule) {
  const bool heads = rule.stored == Stored::kQueryHeads || rule.stored == Stored::kKeyHeads;
  return heads && !family.rotates_neighbours ? Stored::kSame : rule.stored;
}

}  // namespace

std::optional<NamedStorage> their_tensor(const Family& family, std::string_view ours) {
  for (const TensorRule& rule : family.tensors) {
    if (auto name = renamed(ours, rule.ours, rule.theirs)) {
      return NamedStorage{std::move(*name), stored_as(family, rule)};
    }
  }
  return std::nullopt;
}

std::optional<NamedStorage> our_tensor(const Family& family, std::string_view theirs) {
  for (const TensorRule& rule : family.tensors) {
    if (auto name = renamed(theirs, rule.theirs, rule.ours)) {
      return NamedStorage{std::move(*name), stored_as(family, rule)};
    }
  }
  return std::nullopt;
}

namespace {

/// `halves`: whether the rows of each head are two halves, and become pairs, or the reverse.
at::Tensor reordered(const at::Tensor& weight, int64_t heads, bool halves) {
  const int64_t half = weight.size(0) / heads / 2;
  const at::Tensor rows =
      halves ? weight.reshape({heads, 2, half, -1}) : weight.reshape({heads, half, 2, -1});
  return rows.transpose(1, 2).reshape(weight.sizes());
}

at::Tensor converted(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options, bool halves) {
  switch (stored) {
    case Stored::kQueryHeads:
      return reordered(weight, options.num_attention_heads, halves);
    case Stored::kKeyHeads:
      return reordered(weight, options.num_key_value_heads, halves);
    case Stored::kTransposed:
      return weight.dim() == 2 ? weight.t().contiguous() : weight;
    case Stored::kSame:
      break;
  }
  return weight;
}

}  // namespace

at::Tensor to_theirs(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options) {
  return converted(weight, stored, options, true);
}

at::Tensor to_ours(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options) {
  return converted(weight, stored, options, false);
}

void describe_model(const Family& family, const nn::ModelOptions& options, Metadata& metadata) {
  json config = checkpoint::hugging_face_config(options);
  if (family.has_rotary) config["head_dim"] = nn::head_width(options);
  const std::string prefix = concat(family.architecture, ".");
  for (const KeyRule& rule : family.keys) {
    const auto found = config.find(rule.config_key);
    if (found == config.end()) {
      FSDP_CHECK(rule.optional, rule.config_key);
      continue;
    }
    const Value value = rule.kind == kSize ? Value(found->get<uint32_t>()) : Value(found->get<float>());
    metadata.emplace_back(prefix + rule.key, value);
  }
  if (options.rope_type == nn::RopeType::kLinear) {
    metadata.emplace_back(prefix + "rope.scaling.type", std::string("linear"));
    metadata.emplace_back(prefix + "rope.scaling.factor", static_cast<float>(options.rope_factor));
  }
}

std::vector<float> frequency_divisors(const nn::ModelOptions& options) {
  const int64_t width = nn::head_width(options);
  const double low = options.rope_low_freq_factor, high = options.rope_high_freq_factor;
  std::vector<float> divisors;
  for (int64_t i = 0; i < width; i += 2) {
    const double frequency =
        std::pow(options.rope_theta, -static_cast<double>(i) / static_cast<double>(width));
    const double turns = frequency * static_cast<double>(options.rope_original_length) / (2 * M_PI);
    const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    divisors.push_back(static_cast<float>(1 / ((1 - share) / options.rope_factor + share)));
  }
  return divisors;
}

bool find_scaling(const std::vector<float>& divisors, double theta, json& scaling) {
  if (divisors.empty()) return false;
  nn::ModelOptions options;
  options.rope_type = nn::RopeType::kLlama3;
  options.rope_theta = theta;
  options.head_dim = 2 * static_cast<int64_t>(divisors.size());
  options.rope_factor = divisors.back();  // of the slowest
  const auto fits = [&](double high, double original) {
    if (!(high > 1 && high < 1e6 && original >= 1 && original < 1e7)) return false;
    options.rope_low_freq_factor = 1;
    options.rope_high_freq_factor = high;
    options.rope_original_length = std::llround(original);
    const std::vector<float> expected = frequency_divisors(options);
    return std::equal(divisors.begin(), divisors.end(), expected.begin(),
                      [](float a, float b) { return std::fabs(a - b) <= 1e-4F * std::fabs(b); });
  };
  // Between the two thresholds, the share is a linear function of the frequency: slope * f - offset. A multiple
  // of both thresholds and of the length has the same, so that the lower threshold may be 1.
  struct Point {
    double frequency, share;
  };
  std::vector<Point> between;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double slow = 1 / options.rope_factor, share = (1 / divisors[i] - slow) / (1 - slow);
    if (!(share > 1e-4 && share < 1 - 1e-4)) continue;
    between.push_back(
        {std::pow(theta, -static_cast<double>(i) / static_cast<double>(divisors.size())), share});
  }
  const auto original_of = [](double slope, double high) { return slope * 2 * M_PI * (high - 1); };
  constexpr double kUsualHigh = 4, kUsualLength = 8192;
  bool found = false;
  if (between.size() >= 2) {
    const Point& first = between.front();
    const Point& last = between.back();
    const double slope = (first.share - last.share) / (first.frequency - last.frequency);
    const double high = 1 + 1 / (slope * first.frequency - first.share);
    const double rounded = std::round(high * 1000) / 1000;
    found = fits(rounded, original_of(slope, rounded)) || fits(high, original_of(slope, high));
  } else if (between.size() == 1) {
    const double slope = (between[0].share + 1 / (kUsualHigh - 1)) / between[0].frequency;
    found = fits(kUsualHigh, original_of(slope, kUsualHigh));
  } else {
    found = fits(kUsualHigh, kUsualLength);
  }
  if (!found) return false;
  scaling = {{"rope_type", "llama3"},
             {"factor", options.rope_factor},
             {"low_freq_factor", options.rope_low_freq_factor},
             {"high_freq_factor", options.rope_high_freq_factor},
             {"original_max_position_embeddings", options.rope_original_length}};
  return true;
}

}  // namespace fsdp::gguf
