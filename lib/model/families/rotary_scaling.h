#pragma once

// The types of rotary scaling (ModelOptions::rope_type) and the options that each of them reads, with
// transformers' definitions (modeling_rope_utils.py).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/options.h"

namespace fsdp::nn {

/// An option of some types, and its key in the object "rope_parameters" of config.json.
struct RopeOption {
  std::string_view option, key;
  std::vector<RopeType> types;

  bool is_of(RopeType type) const;
};
const std::vector<RopeOption>& rope_options();

/// Whether the architecture of the options has all options of the type.
bool has_rope_type(const ModelOptions& options, RopeType type);

/// A value that its option cannot have beside the others.
struct RopeProblem {
  std::string_view option;
  std::string must;  ///< "must be ..., but is ...; ..."
};
std::optional<RopeProblem> find_rope_problem(const ModelOptions& options);

/// Factor of cosines and sines.
double rope_attention_factor(const ModelOptions& options);

/// Shortest length, in tokens, with the frequencies of sequences of `length` tokens. "longrope" has other
/// frequencies above rope_original_length, "dynamic" for each length above max_position_embeddings.
int64_t rope_length(const ModelOptions& options, int64_t length);

/// Bounds, as indices of frequencies, between which "yarn" mixes plain and divided frequencies.
struct YarnBounds {
  double low, high;
};
YarnBounds yarn_bounds(const ModelOptions& options);

}  // namespace fsdp::nn
