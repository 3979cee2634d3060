#include "checkpoint/hugging_face_config.h"

#include <limits>

#include "checkpoint/model_traits.h"
#include "nn/architectures.h"
#include "util/enum_names.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

/// Reads keys of a config and says of each what is wrong with it.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& where) : config_(config), where_(where) {
    if (!config_.is_object()) fail(ErrorKind::kCheckpoint, where_, " is not a JSON object");
  }

  /// A whole number from 1 on, of at most what the config of a run takes ([model]), so that no number can ask
  /// for more names or elements than there are. Without a default the key must be there. null counts as left
  /// out.
  int64_t size(const char* key, int64_t most, int64_t otherwise = 0) const {
    if (!has(key) && otherwise > 0) return otherwise;
    if (!has(key)) fail(ErrorKind::kCheckpoint, where_, " lacks the key \"", key, "\"");
    const json& value = config_[key];
    if (!value.is_number_integer() || value < 1 || value > most) {
      refuse(key, concat("a whole number from 1 to ", most));
    }
    return value.get<int64_t>();
  }

  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    if (!config_[key].is_number()) refuse(key, "a number");
    return config_[key].get<double>();
  }

  /// Above 0, in single precision too, in which the model computes.
  double positive(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max())) {
      refuse(key, "a number above 0 that single precision has");
    }
    return value;
  }

  /// From 0 to below 1.
  double share(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    if (!(value >= 0 && value < 1)) refuse(key, "a number from 0 to below 1");
    return value;
  }

  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!config_[key].is_boolean()) refuse(key, "true or false");
    return config_[key].get<bool>();
  }

  /// Throws unless the key is left out or has the value that the models here have.
  void require(const char* key, const json& expected) const {
    if (has(key) && config_[key] != expected)
      refuse(key, concat(expected.dump(), ", the only one supported"));
  }

  template <util::NamedEnum E>
  E choice(const char* key, E otherwise) const {
    if (!has(key)) return otherwise;
    const auto known =
        config_[key].is_string() ? util::parse_enum<E>(config_[key].get<std::string>()) : std::nullopt;
    if (!known) refuse(key, concat("one of ", util::join(util::names_of_enum<E>(), ", ")));
    return *known;
  }

  bool has(const char* key) const { return config_.contains(key) && !config_[key].is_null(); }
  /// Whether it is there and null, which is not the same as left out where the default is something.
  bool is_null(const char* key) const { return config_.contains(key) && config_[key].is_null(); }
  json value(const char* key) const { return has(key) ? config_[key] : json(); }
  const std::string& where() const { return where_; }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(ErrorKind::kCheckpoint, where_, ": expected ", expected, " for \"", key, "\" and found ",
         value(key).dump(-1, ' ', true, json::error_handler_t::replace));
  }

 private:
  const json& config_;
  const std::string& where_;
};

// As lib/config/model_keys.cpp has them.
constexpr int64_t kMostVocabulary = 10'000'000, kMostWidth = 1'000'000, kMostLayers = 10'000,
                  kMostHeads = 1024, kMostPositions = 10'000'000;

nn::ModelOptions read_gpt2(const ConfigReader& reader) {
  nn::ModelOptions options;
  options.architecture = "gpt2";
  options.vocab_size = reader.size("vocab_size", kMostVocabulary, 50257);
  options.hidden_size = reader.size("n_embd", kMostWidth, 768);
  options.intermediate_size = reader.size("n_inner", kMostWidth, 4 * options.hidden_size);
  options.num_hidden_layers = reader.size("n_layer", kMostLayers, 12);
  options.num_attention_heads = reader.size("n_head", kMostHeads, 12);
  options.num_key_value_heads = options.num_attention_heads;
  options.max_position_embeddings = reader.size("n_positions", kMostPositions, 1024);
  options.layer_norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  options.attention_dropout = reader.share("attn_pdrop", 0.1);
  options.embedding_dropout = reader.share("embd_pdrop", 0.1);
  options.hidden_dropout = reader.share("resid_pdrop", 0.1);
  options.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  reader.require("activation_function", "gelu_new");
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  return options;
}

/// What scales the rotary positions. `found`: the object of it, or null.
void read_rotary(const ConfigReader& all, const char* key, const json& found, nn::ModelOptions& options) {
  if (found.is_null()) return;
  if (!found.is_object()) all.refuse(key, "null or an object");
  const std::string where = concat("\"", key, "\" of ", all.where());
  const ConfigReader reader(found, where);
  options.rope_theta = reader.positive("rope_theta", options.rope_theta);
  reader.require("partial_rotary_factor", 1);
  // "type" is what older releases wrote.
  const char* name = reader.has("rope_type") ? "rope_type" : "type";
  if (!reader.has(name)) return;
  const json& type = found[name];
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    reader.refuse(name, "\"default\", \"linear\" or \"llama3\", the only ones supported,");
  }
  options.rope_type = type.get<std::string>();
  options.rope_factor = reader.positive("factor", 0);
  if (options.rope_type == nn::RopeType::kLinear) return;
  options.rope_low_freq_factor = reader.positive("low_freq_factor", 0);
  options.rope_high_freq_factor = reader.positive("high_freq_factor", 0);
  options.rope_original_length = reader.size("original_max_position_embeddings", kMostPositions);
  if (!(options.rope_low_freq_factor < options.rope_high_freq_factor)) {
    reader.refuse("low_freq_factor", "less than \"high_freq_factor\"");
  }
}

nn::ModelOptions read_llama(const ConfigReader& reader, const std::string& type) {
  const bool mistral = type == "mistral", qwen2 = type == "qwen2";
  nn::ModelOptions options;
  options.architecture = "llama";
  options.vocab_size = reader.size("vocab_size", kMostVocabulary, qwen2 ? 151936 : 32000);
  options.hidden_size = reader.size("hidden_size", kMostWidth, 4096);
  options.intermediate_size = reader.size("intermediate_size", kMostWidth,
                                          mistral ? 14336
                                          : qwen2 ? 22016
                                                  : 11008);
  options.num_hidden_layers = reader.size("num_hidden_layers", kMostLayers, 32);
  options.num_attention_heads = reader.size("num_attention_heads", kMostHeads, 32);
  options.num_key_value_heads = reader.size("num_key_value_heads", kMostHeads,
                                            mistral ? 8
                                            : qwen2 ? 32
                                                    : options.num_attention_heads);
  options.max_position_embeddings = reader.size("max_position_embeddings", kMostPositions,
                                                mistral ? 131072
                                                : qwen2 ? 32768
                                                        : 2048);
  options.rms_norm_eps = reader.positive("rms_norm_eps", 1e-6);
  options.rope_theta = reader.positive("rope_theta", 10000.0);
  options.attention_dropout = reader.share("attention_dropout", 0);
  options.tie_word_embeddings = reader.flag("tie_word_embeddings", false);
  options.qkv_bias = qwen2;
  if (type == "llama") {
    options.attention_bias = reader.flag("attention_bias", false);
    options.mlp_bias = reader.flag("mlp_bias", false);
  }
  // Mistral's default is a window; Qwen2 has one only where it says so.
  if (mistral) {
    options.sliding_window =
        reader.is_null("sliding_window") ? 0 : reader.size("sliding_window", kMostPositions, 4096);
  }
  if (qwen2) reader.require("use_sliding_window", false);
  if (reader.has("head_dim")) {
    const int64_t width = reader.size("head_dim", kMostWidth);
    if (width * options.num_attention_heads != options.hidden_size) options.head_dim = width;
  } else if (options.hidden_size % options.num_attention_heads != 0) {
    reader.refuse("num_attention_heads", "heads that make up the hidden size");
  }
  options.hidden_act = reader.choice("hidden_act", nn::Activation::kSilu);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    read_rotary(reader, key, reader.value(key), options);
  }
  return options;
}

/// Which of transformers' classes the model is.
std::string llama_type(const nn::ModelOptions& options) {
  const bool mistral = options.sliding_window > 0, qwen2 = options.qkv_bias;
  return mistral ? "mistral" : qwen2 ? "qwen2" : "llama";
}

void update_llama(json& config, const nn::ModelOptions& options) {
  const std::string type = llama_type(options);
  config.update({{"architectures",
                  {type == "mistral" ? "MistralForCausalLM"
                   : type == "qwen2" ? "Qwen2ForCausalLM"
                                     : "LlamaForCausalLM"}},
                 {"model_type", type},
                 {"hidden_size", options.hidden_size},
                 {"intermediate_size", options.intermediate_size},
                 {"num_hidden_layers", options.num_hidden_layers},
                 {"num_attention_heads", options.num_attention_heads},
                 {"num_key_value_heads", options.num_key_value_heads},
                 {"max_position_embeddings", options.max_position_embeddings},
                 {"rms_norm_eps", options.rms_norm_eps},
                 {"rope_theta", options.rope_theta},
                 {"attention_dropout", options.attention_dropout},
                 {"hidden_act", util::name_of(options.hidden_act)}});
  if (options.head_dim > 0) config["head_dim"] = options.head_dim;
  if (type == "llama") {
    config["attention_bias"] = options.attention_bias;
    config["mlp_bias"] = options.mlp_bias;
  }
  if (type == "mistral") config["sliding_window"] = options.sliding_window;
  if (type == "qwen2") config["use_sliding_window"] = false;
  if (options.rope_type == nn::RopeType::kDefault) return;
  json scaling = {{"rope_type", options.rope_type.name()}, {"factor", options.rope_factor}};
  if (options.rope_type == nn::RopeType::kLlama3) {
    scaling.update({{"low_freq_factor", options.rope_low_freq_factor},
                    {"high_freq_factor", options.rope_high_freq_factor},
                    {"original_max_position_embeddings", options.rope_original_length}});
  }
  config["rope_scaling"] = scaling;
}

}  // namespace

nlohmann::json hugging_face_config(const nn::ModelOptions& options) {
  FSDP_CHECK(nn::is_built_in_architecture(options.architecture), options.architecture);
  nlohmann::json config = {{"vocab_size", options.vocab_size},
                           {"initializer_range", options.initializer_range},
                           {"tie_word_embeddings", options.tie_word_embeddings},
                           {"torch_dtype", "float32"}};
  if (options.architecture == "gpt2") {
    config.update({{"architectures", {"GPT2LMHeadModel"}},
                   {"model_type", "gpt2"},
                   {"n_embd", options.hidden_size},
                   {"n_inner", options.intermediate_size},
                   {"n_layer", options.num_hidden_layers},
                   {"n_head", options.num_attention_heads},
                   {"n_positions", options.max_position_embeddings},
                   {"layer_norm_epsilon", options.layer_norm_epsilon},
                   {"activation_function", "gelu_new"},
                   {"attn_pdrop", options.attention_dropout},
                   {"embd_pdrop", options.embedding_dropout},
                   {"resid_pdrop", options.hidden_dropout}});
  } else {
    update_llama(config, options);
  }
  return config;
}

nn::ModelOptions options_from_hugging_face(const json& config, const std::string& where) {
  ConfigReader reader(config, where);
  if (reader.has("quantization_config")) {
    fail(ErrorKind::kCheckpoint, where,
         " describes quantized weights; only floating-point ones are supported");
  }
  nn::ModelOptions options;
  if (reader.has("model_type") && config["model_type"] == "gpt2") {
    options = read_gpt2(reader);
  } else if (const json type = reader.value("model_type");
             type == "llama" || type == "mistral" || type == "qwen2") {
    options = read_llama(reader, type.get<std::string>());
  } else {
    const std::string why = type.is_string() ? unsupported_type(type.get<std::string>()) : "";
    fail(ErrorKind::kCheckpoint, where,
         ": expected \"gpt2\", \"llama\", \"mistral\" or \"qwen2\" for \"model_type\" and found ",
         type.dump(-1, ' ', true, json::error_handler_t::replace),
         why.empty() ? "" : ", whose models differ: ", why,
         why.empty() ? "" : ", which this version cannot compute");
  }
  refuse_unsupported_traits(config, where);
  options.initializer_range = reader.number("initializer_range", 0.02);
  if (!(options.initializer_range >= 0)) reader.refuse("initializer_range", "a number of at least 0");
  return options;
}

std::map<std::string, std::vector<int64_t>> hugging_face_shapes(const nn::ModelOptions& options) {
  const int64_t vocabulary = options.vocab_size, hidden = options.hidden_size;
  const int64_t inner = options.intermediate_size;
  std::map<std::string, std::vector<int64_t>> shapes;
  if (!options.tie_word_embeddings) shapes["lm_head.weight"] = {vocabulary, hidden};
  if (options.architecture == "gpt2") {
    auto add = [&](const std::string& name, const std::vector<int64_t>& weight) {
      shapes[name + ".weight"] = weight;
      shapes[name + ".bias"] = {weight.back()};
    };
    shapes["transformer.wte.weight"] = {vocabulary, hidden};
    shapes["transformer.wpe.weight"] = {options.max_position_embeddings, hidden};
    add("transformer.ln_f", {hidden});
    for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
      const std::string block = concat("transformer.h.", i, ".");
      add(block + "ln_1", {hidden});
      add(block + "attn.c_attn", {hidden, 3 * hidden});
      add(block + "attn.c_proj", {hidden, hidden});
      add(block + "ln_2", {hidden});
      add(block + "mlp.c_fc", {hidden, inner});
      add(block + "mlp.c_proj", {inner, hidden});
    }
    return shapes;
  }
  const int64_t query = nn::query_width(options), key_value = nn::key_width(options);
  auto add = [&](const std::string& name, int64_t out, int64_t in, bool biased) {
    shapes[name + ".weight"] = {out, in};
    if (biased) shapes[name + ".bias"] = {out};
  };
  const bool biased = options.attention_bias || options.qkv_bias;
  shapes["model.embed_tokens.weight"] = {vocabulary, hidden};
  shapes["model.norm.weight"] = {hidden};
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    const std::string block = concat("model.layers.", i, ".");
    shapes[block + "input_layernorm.weight"] = {hidden};
    add(block + "self_attn.q_proj", query, hidden, biased);
    add(block + "self_attn.k_proj", key_value, hidden, biased);
    add(block + "self_attn.v_proj", key_value, hidden, biased);
    add(block + "self_attn.o_proj", hidden, query, options.attention_bias);
    shapes[block + "post_attention_layernorm.weight"] = {hidden};
    add(block + "mlp.gate_proj", inner, hidden, options.mlp_bias);
    add(block + "mlp.up_proj", inner, hidden, options.mlp_bias);
    add(block + "mlp.down_proj", hidden, inner, options.mlp_bias);
  }
  return shapes;
}

}  // namespace fsdp::checkpoint
