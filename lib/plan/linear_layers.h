#pragma once

// The linear layers of a block, and which of them multiply in 8 bits (training.float8), for a plan, which
// links no libtorch: it says the same as nn/float8.h and train/float8_layers.h, and
// tests/train/plan_kernels_test.cpp holds the one against the other.

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::plan {

/// kernels::kFloat8Multiple.
inline constexpr int64_t kFloat8Multiple = 16;

/// The weights that are multiplied in 8 bits.
struct Float8Choice {
  bool on = false;
  std::vector<std::string> exclude = {};  ///< patterns of weights that are not

  /// Whether that of a layer is, as of "model.layers.0.mlp.up_proj".
  bool has(const std::string& layer, int64_t in, int64_t out) const;
};

Float8Choice float8_choice(const config::Config& config);

struct LinearLayer {
  const char* name;  ///< within its stage: "q_proj"
  int64_t in, out;
  bool float8 = false;
};
using LinearLayers = std::vector<LinearLayer>;

/// In the order in which they multiply; only the last does not take the stage's input. None in 8 bits.
LinearLayers attention_layers(const nn::ModelOptions& model);
LinearLayers feed_forward_layers(const nn::ModelOptions& model);

/// Says of each whether it multiplies in 8 bits. `stage` is the path of theirs.
void choose_float8(LinearLayers& layers, const std::string& stage, const Float8Choice& choice);

}  // namespace fsdp::plan
