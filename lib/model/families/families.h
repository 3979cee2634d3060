#pragma once

// The table of the built-in decoders, and what follows from a model's family and options.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/families/options.h"

namespace fsdp::nn {

/// The families of built_in/, in the order of their files' names.
const std::vector<Family>& families();
/// Returns null for a name that is not built in.
const Family* find_family(std::string_view architecture);
/// Requires: the architecture is built in.
const Family& family_of(const ModelOptions& options);

/// Model type of transformers with this name; null if no family has it.
const ModelType* find_model_type(std::string_view name);
/// Model type that computes what the options of a built-in architecture describe; null if none does, because
/// options exclude each other.
const ModelType* model_type_of(const ModelOptions& options);
/// Keys of config.json that hold one option each, in the order in which they can be read.
std::vector<ConfigKey> config_keys(const ModelType& type);

/// Number of key and value heads, which is that of query heads in families without num_key_value_heads.
int64_t key_value_heads(const ModelOptions& options);
/// Width of a head, of all queries, and of all keys (or all values).
int64_t head_width(const ModelOptions& options);
int64_t query_width(const ModelOptions& options);
int64_t key_width(const ModelOptions& options);
/// Number of tokens of the longest sequence: max_position_embeddings, with rope_type "dynamic" times
/// rope_factor.
int64_t longest_sequence(const ModelOptions& options);
/// Number of leading elements of a head that rotate.
int64_t rotary_width(const ModelOptions& options);

/// Whether the query, key and value projections have biases, the output projection, and the feed-forward.
bool has_qkv_bias(const ModelOptions& options);
bool has_output_bias(const ModelOptions& options);
bool has_feed_forward_bias(const ModelOptions& options);

/// Whether the layer, counted from 0, attends to sliding_window tokens, if there is a window.
bool is_local_layer(const ModelOptions& options, int64_t layer);
/// Number of tokens that a token of the layer attends to, the last of which is itself; 0: all earlier ones.
int64_t window_of_layer(const ModelOptions& options, int64_t layer);
/// Whether the layer has rotary positions.
bool is_rotary_layer(const ModelOptions& options, int64_t layer);

/// Whether the feed-forward of the layer, counted from 0, consists of experts.
bool is_expert_layer(const ModelOptions& options, int64_t layer);
/// Width inside an expert.
int64_t expert_width(const ModelOptions& options);
/// Returns router_aux_loss_coef, or 0 for a model without experts and for that of a plug-in.
double aux_loss_coef(const ModelOptions& options);
/// Number of parameters in the matrices of a layer's feed-forward, with all experts and the router.
int64_t feed_forward_elements(const ModelOptions& options, int64_t layer);

/// Shapes of all weights of the model by name, without a tied head.
std::map<std::string, std::vector<int64_t>> weight_shapes(const ModelOptions& options);

}  // namespace fsdp::nn
