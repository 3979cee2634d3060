#pragma once

// Which linear layers of a block multiply in 8 bits (training.float8), for a plan, which links no libtorch: what
// train/float8_layers.h chooses. tests/train/plan_kernels_test.cpp compares the two.

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "nn/layer_specs.h"

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

/// Those of nn/layer_specs.h, none in 8 bits.
LinearLayers linear_layers(const std::vector<nn::LinearSpec>& specs);

/// Says of each whether it multiplies in 8 bits. `stage` is the path of theirs.
void choose_float8(LinearLayers& layers, const std::string& stage, const Float8Choice& choice);

}  // namespace fsdp::plan
