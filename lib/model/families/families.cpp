#include "model/families/families.h"

#include <algorithm>

#include "base/util/error.h"
#include "model/families/built_in.h"
#include "model/families/option_rules.h"

namespace fsdp::nn {
namespace {

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
  return std::ranges::find(options, option) != options.end();
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> made = make_built_in_families();
    for (Family& family : made) {
      for (ModelType& type : family.types) {
        ModelOptions& defaults = type.defaults;
        defaults.architecture = family.architecture;
        defaults.vocab_size = type.sizes.vocab_size;
        defaults.hidden_size = type.sizes.hidden_size;
        defaults.intermediate_size = type.sizes.intermediate_size;
        defaults.num_hidden_layers = type.sizes.num_hidden_layers;
        defaults.num_attention_heads = type.sizes.num_attention_heads;
        defaults.num_key_value_heads = type.sizes.num_key_value_heads;
        defaults.max_position_embeddings = type.sizes.max_position_embeddings;
      }
    }
    return made;
  }();
  return all;
}

const Family* find_family(std::string_view architecture) {
  const auto found = std::ranges::find(families(), architecture, &Family::architecture);
  return found == families().end() ? nullptr : &*found;
}

const Family& family_of(const ModelOptions& options) {
  const Family* family = find_family(options.architecture);
  FSDP_CHECK(family != nullptr, options.architecture);
  return *family;
}

const ModelType* find_model_type(std::string_view name) {
  for (const Family& family : families()) {
    const auto found = std::ranges::find(family.types, name, &ModelType::name);
    if (found != family.types.end()) return &*found;
  }
  return nullptr;
}

const ModelType* model_type_of(const ModelOptions& options) {
  const std::vector<ModelType>& types = family_of(options).types;
  const auto found = std::ranges::find_if(types, [&](const ModelType& type) {
    return std::ranges::all_of(type.without_key, [&](const std::string& option) {
      return option_rule(option).is_equal(options, type.defaults);
    });
  });
  return found == types.end() ? nullptr : &*found;
}

std::vector<ConfigKey> config_keys(const ModelType& type) {
  const Family& family = family_of(type.defaults);
  std::vector<std::string> options = {"vocab_size",        "hidden_size",         "intermediate_size",
                                      "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
                                      "attention_dropout", "tie_word_embeddings", "initializer_range"};
  options.insert(options.end(), family.options.begin(), family.options.end());
  if (family.has_experts()) options.emplace_back("router_aux_loss_coef");
  std::vector<ConfigKey> keys = type.keys;
  for (const std::string& option : options) {
    const bool has_own_key = std::ranges::count(type.keys, option, &ConfigKey::option) > 0;
    const bool is_nested = type.nested_rotary && option == "rope_local_base_freq";
    const bool has_key = option_rule(option).range != OptionRange::kElsewhere && !is_nested &&
                         std::ranges::count(type.without_key, option) == 0;
    if (has_key && !has_own_key) keys.push_back({option, option});
  }
  return keys;
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

int64_t longest_sequence(const ModelOptions& options) {
  const bool grows = options.rope_type == RopeType::kDynamic;
  const auto positions = static_cast<double>(options.max_position_embeddings);
  return grows
             ? std::min(static_cast<int64_t>(positions * std::max(options.rope_factor, 1.0)), kMostPositions)
             : options.max_position_embeddings;
}

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
  const Family& family = family_of(options);
  const bool is_left_out =
      family.rotates_in_windows && options.sliding_window > 0 && !is_local_layer(options, layer);
  return family.is_rotary() && !is_every(options.no_rope_layer_interval, layer) && !is_left_out;
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
    all.shapes[concat(family.inner, ".", family.positions, ".weight")] = {options.max_position_embeddings,
                                                                          hidden};
  }
  all.norm(concat(family.inner, ".", family.last_norm), hidden);
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    const std::string block = concat(family.inner, ".", family.blocks, ".", i, ".");
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
      add_feed_forward(concat(feed_forward, family.experts, ".", expert, "."), expert_width(options));
    }
  }
  return all.shapes;
}

}  // namespace fsdp::nn
