#pragma once

// What the halves of a decoder's blocks are made of, said once: the modules register and compute what these
// say (nn/attention.cpp, nn/feed_forward.cpp), outlines list the parameters (nn/decoder_outline.cpp), and plans
// take the products, and what is kept of them for backward, from here (lib/plan). Needs no libtorch.

#include <vector>

#include "nn/options.h"

namespace fsdp::nn {

/// y = x W^T, weight [out, in]; transposed: y = x W, weight [in, out] (GPT-2's "Conv1D"). Biased: + b [out].
struct LinearSpec {
  const char* name;  ///< within its stage: "q_proj"
  int64_t in, out;
  bool biased = false;
  bool transposed = false;
};

/// In the order in which they are registered and multiply. Only the last does not take the stage's input.
std::vector<LinearSpec> attention_layers(const ModelOptions& options);

/// output(activation(inputs[0](x))), or, gated, output(activation(inputs[0](x)) * inputs[1](x)).
struct FeedForwardSpec {
  std::vector<LinearSpec> inputs;
  Activation activation;
  LinearSpec output;
  /// kernels/fused.h has one kernel for what is between the layers, which keeps its inputs and its result; else
  /// libtorch's operations are composed, and the activation's result is kept too.
  bool has_fused_kernel;

  bool is_gated() const { return inputs.size() == 2; }
  std::vector<LinearSpec> layers() const {
    std::vector<LinearSpec> all = inputs;
    all.push_back(output);
    return all;
  }
};
FeedForwardSpec feed_forward_spec(const ModelOptions& options);

}  // namespace fsdp::nn
