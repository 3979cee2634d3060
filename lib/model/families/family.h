#pragma once

// What a file of built_in/ says of its family of decoders: the shape of its models and the names of their
// modules, which are those of transformers; its config.json; and its form in GGUF. All of it is data, which
// nn, hugging_face and gguf read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/options.h"

namespace fsdp::nn {

enum class NormKind {
  kRms,
  kRmsPlusOne,  ///< multiplies by 1 + weight, in fp32 (Gemma)
  kLayer,
};

/// Norms of queries and keys, before their rotation.
enum class QueryKeyNorm {
  kNone,
  kOfHead,  ///< each head has a norm, all with one weight (Henry et al.: Query-Key Normalization, 2020)
  kOfAll,   ///< one norm over all heads of a token
};

/// The order of rows in the weight that gives queries, keys and values.
enum class QkvForm {
  kSeparate,    ///< three weights
  kSideBySide,  ///< all queries, all keys, all values
  kByHead,      ///< query, key and value of the first head, of the second, ...
};

/// A key of config.json whose name is not that of the option. Of several keys of an option, the last that is
/// there counts.
struct ConfigKey {
  enum class Direction { kBoth, kReadOnly, kWriteOnly };
  std::string option, key;
  Direction direction = Direction::kBoth;
};

/// A key of GGUF's metadata, which follows the architecture's name and a dot, and the option that it holds.
/// Instead of partial_rotary_factor it holds the number of elements of a head that rotate: all, without the
/// key.
struct GgufKey {
  std::string key, option;
  bool optional = false;  ///< a file may lack it, and a model the option
};

/// A key of config.json that is true if the file has the tensor.
struct GgufFlag {
  std::string config_key, tensor;
};

/// The form of a model in GGUF files, which llama.cpp reads. The defaults are those of most architectures.
struct GgufArchitecture {
  std::string architecture = {};  ///< value of general.architecture; empty: no export to GGUF
  std::vector<GgufKey> keys = {};
  std::vector<GgufFlag> flags = {};
  /// Keys of config.json with the only values that llama.cpp computes, as a JSON object.
  std::string fixed = R"({"hidden_act": "silu"})";
  bool rotates_neighbours = false;  ///< llama.cpp rotates neighbouring elements of a head, not its two halves
  bool scales_frequencies = false;  ///< rope_freqs.weight: Llama 3's rotary scaling
  bool has_longrope = false;        ///< rope_factors_short.weight and rope_factors_long.weight
  bool heads_fill_width = false;    ///< the widths of all heads add up to hidden_size
  std::string norm_before_feed_forward = "ffn_norm";  ///< its tensor
  /// Every how manyth layer has no window unless attention.sliding_window_pattern says it; 0: the key is not
  /// read.
  int64_t window_pattern = 0;
  /// Number of layers of the one size (EXAONE 4 32B) that has windows, without a choice; 0: the key decides.
  int64_t layers_with_windows = 0;
  /// Layers with a window rotate by the base of the others, without rotary scaling.
  bool plain_windows = false;
  /// Number of layers of the one size (Gemma 27B) for which llama.cpp divides scores by the root of
  /// hidden_size / heads, not by that of a head's width.
  int64_t layers_with_other_scale = 0;
};

/// transformers' defaults, which are those of one model.
struct DefaultSizes {
  int64_t vocab_size, hidden_size;
  int64_t intermediate_size;  ///< 0: four times hidden_size
  int64_t num_hidden_layers, num_attention_heads;
  int64_t num_key_value_heads;  ///< 0: as many as heads
  int64_t max_position_embeddings;
};

/// A model type of transformers.
struct ModelType {
  std::string name;         ///< "model_type" of config.json
  std::string model_class;  ///< transformers' class with a language-model head
  DefaultSizes sizes;
  ModelOptions defaults = {};  ///< transformers' other defaults; families() adds the sizes
  GgufArchitecture gguf = {};
  std::vector<ConfigKey> keys = {};           ///< other options have keys of their own names
  std::vector<std::string> without_key = {};  ///< options that always have their defaults
  std::string required = {},
              written = {};  ///< JSON objects: keys with their only values, and keys that are added
  /// transformers' default of original_max_position_embeddings, where config.json has this key beside the
  /// object of rotary positions; 0: it is inside.
  int64_t original_length = 0;
  /// "rope_parameters" has an object for each kind of layer, where rope_local_base_freq has no other key.
  bool nested_rotary = false;
  bool lists_windows = false;  ///< "layer_types" may name the window that all layers have
};

struct Family {
  std::string architecture;  ///< value of ModelOptions::architecture
  /// Fields of ModelOptions that the family has besides those that all have.
  std::vector<std::string> options;

  NormKind norm = NormKind::kRms;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  QkvForm qkv_form = QkvForm::kSeparate;
  bool transposed = false;           ///< linear layers are [in, out], with biases (transformers' Conv1D)
  bool biased_feed_forward = false;  ///< the feed-forward always has biases; otherwise mlp_bias decides
  bool scaled_embeddings = false;    ///< embeddings are multiplied by sqrt(hidden_size)
  bool rotates_neighbours =
      false;  ///< neighbouring elements of a head rotate together, not those of two halves
  bool rotates_in_windows = false;  ///< if there are windows, layers without one have no rotary positions
  /// End of the names of weights whose initial deviation is divided by sqrt(2 * layers); empty: none.
  std::string damped = {};

  std::string inner = "model";  ///< the model without its head
  std::string tokens = "embed_tokens";
  std::string positions = {};  ///< embedding of learned positions; empty: positions are rotary
  std::string blocks = "layers", last_norm = "norm", head = "lm_head";
  // Modules of a block. Empty: it has no such norm. A norm after a layer is one of the layer's result.
  std::string norm_before_attention = "input_layernorm", norm_after_attention = {};
  std::string norm_before_feed_forward = "post_attention_layernorm", norm_after_feed_forward = {};
  bool norms_come_first = false;  ///< norms precede the layers in the order of a block's parameters
  std::string attention = "self_attn", feed_forward = "mlp";
  // Modules of attention. `queries` is the only projection unless QkvForm::kSeparate.
  std::string queries = "q_proj", keys = "k_proj", values = "v_proj", output = "o_proj";
  // Modules of the feed-forward. gate: empty where there is none, or where `up` has gate and up side by side.
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  bool joined_gate = false;
  // Modules of a feed-forward of experts, each of which has the names above. router: empty in families
  // without experts.
  std::string router = {}, experts = "experts";
  bool renormalizes = false;  ///< weights of a token's experts add up to 1; otherwise norm_topk_prob decides

  std::vector<ModelType>
      types;  ///< the first one describes the options whose keyless options have its defaults

  bool has(std::string_view option) const;
  bool is_rotary() const { return positions.empty(); }
  bool is_gated() const { return joined_gate || !gate.empty(); }
  bool has_experts() const { return !router.empty(); }
  std::string token_weight() const { return inner + "." + tokens + ".weight"; }
  std::string head_weight() const { return head + ".weight"; }
};

}  // namespace fsdp::nn
