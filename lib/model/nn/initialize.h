#pragma once

// Initial weights. A parameter's initial values depend on the seed and its name only, not on the number of
// processes or on the order in which the model is built.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/util/rectangle.h"
#include "model/families/options.h"

namespace fsdp::nn {

/// Matrices: normal with deviation initializer_range or ModelKind::deviation (gpt2 scales the projections
/// back into the residual stream, c_proj, by 1/sqrt(2 * layers); GPT-2 paper, section 2.3). Vectors: 0 if
/// their name ends with "bias" or if norms add one to them, else 1.
void initialize_parameter(const std::string& name, const at::Tensor& parameter, const ModelOptions& options,
                          uint64_t seed);

/// Computes ascending parts of the values that initialize_parameter() gives a parameter of these sizes, bit
/// for bit, one after another. Other elements are neither computed nor allocated, unless their number is no
/// multiple of 16. out: 1-D, fp32, contiguous, in host memory.
void initialize_elements(const std::string& name, at::IntArrayRef sizes,
                         const std::vector<util::Rectangle>& parts, const at::Tensor& out,
                         const ModelOptions& options, uint64_t seed);

/// Initialises every parameter of the module; a tied parameter by its first name.
void initialize_parameters(torch::nn::Module& module, const ModelOptions& options, uint64_t seed);

}  // namespace fsdp::nn
