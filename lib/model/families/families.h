#pragma once

// The table of the built-in decoders: what differs between them, and the names of their modules, which are
// those of transformers.

#include <cstdint>
#include <map>
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
  kOfHead,  ///< of each head, all with one weight (Henry et al.: Query-Key Normalization, 2020)
  kOfAll,   ///< of all heads of a token together
};

/// How the weight that gives queries, keys and values has their rows.
enum class QkvForm {
  kSeparate,    ///< three weights
  kSideBySide,  ///< all queries, all keys, all values
  kByHead,      ///< query, key and value of the first head, of the second, ...
};

struct Family {
  std::string architecture;  ///< value of ModelOptions::architecture
  /// Fields of ModelOptions that the family has besides those that all have.
  std::vector<std::string> options;

  NormKind norm = NormKind::kRms;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  QkvForm qkv_form = QkvForm::kSeparate;
  bool transposed = false;           ///< linear layers are [in, out], with biases (transformers' Conv1D)
  bool biased_feed_forward = false;  ///< else where mlp_bias says so
  bool scaled_embeddings = false;    ///< by sqrt(hidden_size)

  std::string inner = "model";  ///< the model without its head
  std::string tokens = "embed_tokens";
  std::string positions = {};  ///< of learned positions; empty: rotary ones
  std::string blocks = "layers", last_norm = "norm", head = "lm_head";
  // Of a block. Empty: it has no such norm. A norm after a layer is one of the layer's result.
  std::string norm_before_attention = "input_layernorm", norm_after_attention = {};
  std::string norm_before_feed_forward = "post_attention_layernorm", norm_after_feed_forward = {};
  bool norms_come_first = false;  ///< in the order of a block's parameters
  std::string attention = "self_attn", feed_forward = "mlp";
  // Of attention. `queries` is the only projection unless QkvForm::kSeparate.
  std::string queries = "q_proj", keys = "k_proj", values = "v_proj", output = "o_proj";
  // Of the feed-forward. gate: empty where there is none, or where `up` has gate and up side by side.
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  bool joined_gate = false;
  // Of a feed-forward of experts, each of which has the names above. router: empty in families without
  // experts.
  std::string router = {}, experts = "experts";
  bool renormalizes =
      false;  ///< weights of a token's experts always add up to 1; else where norm_topk_prob says so

  bool has(std::string_view option) const;
  bool is_rotary() const { return positions.empty(); }
  bool is_gated() const { return joined_gate || !gate.empty(); }
  bool has_experts() const { return !router.empty(); }
  std::string token_weight() const { return inner + "." + tokens + ".weight"; }
  std::string head_weight() const { return head + ".weight"; }
};

const std::vector<Family>& families();
/// Null for a name that is not built in.
const Family* find_family(std::string_view architecture);
/// Of a built-in architecture.
const Family& family_of(const ModelOptions& options);

/// Key and value heads: all of the query heads in families without num_key_value_heads.
int64_t key_value_heads(const ModelOptions& options);
/// Width of a head, of all queries and of all keys (or all values).
int64_t head_width(const ModelOptions& options);
int64_t query_width(const ModelOptions& options);
int64_t key_width(const ModelOptions& options);
/// Leading elements of a head that rotate.
int64_t rotary_width(const ModelOptions& options);

/// Whether query, key and value projections have biases, and whether the output's has.
bool has_qkv_bias(const ModelOptions& options);
bool has_output_bias(const ModelOptions& options);
bool has_feed_forward_bias(const ModelOptions& options);

/// Whether the layer, from 0 on, is one of those that attend to sliding_window tokens, if there is a window.
bool is_local_layer(const ModelOptions& options, int64_t layer);
/// Tokens that a token of the layer sees, the last of which is itself; 0: all earlier ones.
int64_t window_of_layer(const ModelOptions& options, int64_t layer);
/// Whether the layer has rotary positions.
bool is_rotary_layer(const ModelOptions& options, int64_t layer);

/// Whether the feed-forward of the layer, from 0 on, consists of experts.
bool is_expert_layer(const ModelOptions& options, int64_t layer);
/// Width inside an expert.
int64_t expert_width(const ModelOptions& options);
/// router_aux_loss_coef; 0 for a model without experts, also one of a plug-in.
double aux_loss_coef(const ModelOptions& options);
/// Parameters of the matrices of a layer's feed-forward, all experts and the router.
int64_t feed_forward_elements(const ModelOptions& options, int64_t layer);

/// Every weight of the model, and its shape; a tied head is not one.
std::map<std::string, std::vector<int64_t>> weight_shapes(const ModelOptions& options);

}  // namespace fsdp::nn
