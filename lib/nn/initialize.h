#pragma once

// Initial weights. What a parameter starts with depends on the seed and its name only, so that any number of
// processes, and any order of building the model, starts equal.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "nn/options.h"

namespace fsdp::nn {

/// Normal(0, initializer_range) for matrices, or as ModelKind::deviation says: for gpt2 the projections back
/// into the residual stream (c_proj) are scaled by 1/sqrt(2 * layers) (GPT-2 paper, section 2.3). Vectors are
/// 0 where their name ends with "bias", and 1 otherwise.
void initialize_parameter(const std::string& name, const at::Tensor& parameter, const ModelOptions& options,
                          uint64_t seed);

/// Elements [begin, begin + out.numel()) of what initialize_parameter() gives a parameter of these sizes, bit
/// for bit, where the others are not needed: they are neither computed nor is there memory for them. out:
/// 1-D, fp32, contiguous, in host memory.
void initialize_elements(const std::string& name, at::IntArrayRef sizes, int64_t begin, const at::Tensor& out,
                         const ModelOptions& options, uint64_t seed);

/// Every parameter of the module. A tied parameter is initialised under the first of its names.
void initialize_parameters(torch::nn::Module& module, const ModelOptions& options, uint64_t seed);

}  // namespace fsdp::nn
