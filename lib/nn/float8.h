#pragma once

// Linear layers whose products are in 8-bit floating point (kernels/float8.h): those of the blocks. Embedding
// and output head stay as they are, and so does a layer whose sizes do not fit. A layer multiplies in bf16
// what it cannot in 8 bits: parameters or inputs of other types, and rows (tokens of the batch) whose number
// is no multiple of 16, as in generation.

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace fsdp::nn {

/// Names of linear layers, in the order of the model.
struct Float8Layers {
  std::vector<std::string> chosen;
  std::vector<std::string> unfit;     ///< a size is no multiple of 16
  std::vector<std::string> excluded;  ///< by a pattern
};

/// Lets the linear layers of the model multiply so, but for those a name of whose weight a pattern of
/// `exclude` (util/text.h) matches.
Float8Layers use_float8(torch::nn::Module& model, const std::vector<std::string>& exclude);

}  // namespace fsdp::nn
