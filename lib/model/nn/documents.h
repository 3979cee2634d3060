#pragma once

// Documents of a batch as numbers and tensors. The tensors are written to pinned memory and copied to a GPU
// beside the host, which does not wait.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/nn/stage.h"

namespace fsdp::nn {

/// Number of tokens of each document in a row of `length` tokens. starts: first token of each, 0 first
std::vector<int64_t> document_lengths(const std::vector<int64_t>& starts, int64_t length);

/// Number of tokens of the longest document of all rows.
int64_t longest_document(const DocumentStarts& documents, int64_t length);

/// First position of each document in rows that lie one after another, and the end of the last one
/// -> [documents + 1] int32
at::Tensor document_bounds(const DocumentStarts& documents, int64_t length, const at::Device& device);

/// Positions of the tokens, from 0 at the beginning of each document -> [B, T] int64
at::Tensor document_positions(const DocumentStarts& documents, int64_t length, const at::Device& device);

}  // namespace fsdp::nn
