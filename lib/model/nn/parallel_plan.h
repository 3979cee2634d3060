#pragma once

// How a model is computed by several ranks, as data, in the words of torch.distributed.tensor.parallel: which
// module is cut how, and how activations enter and leave it. model/nn/parallelize.h applies it.
//
//   {"model.embed_tokens",        RowwiseParallel{.input = Replicate{}, .output = Shard{1}}},
//   {"model.layers.*.mlp",        PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
//   {"model.layers.*.mlp.*_proj", ...}
//
// A module that PrepareModuleInput makes Replicate is a region: its ranks compute different things of the
// same input, ColwiseParallel layers first, RowwiseParallel layers last, whose sum over the ranks leaves the
// region.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "model/parallel/collectives.h"

namespace fsdp::nn {

using parallel::Layout;
using parallel::Replicate;
using parallel::Shard;

/// A linear layer of which each rank computes some output features, or the head, with its part of the
/// vocabulary.
struct ColwiseParallel {
  Layout input = Replicate{};  ///< outside of a region the layer makes it whole
  Layout output = Shard{-1};   ///< Replicate: the ranks' features are gathered
  /// Equal layers whose features lie side by side, each of which is cut (GPT-2's c_attn: 3).
  int64_t blocks = 1;
  /// Heads that must not be cut, in each block; 0: any feature may be.
  int64_t heads = 0;
  /// Neighbouring ranks have the same head if there are fewer heads than ranks.
  bool repeats_heads = false;
};

/// A linear layer that has some input features on each rank, or an embedding that has some tokens. The ranks'
/// results are added, then the bias.
struct RowwiseParallel {
  /// Replicate: of an embedding; a linear layer outside of regions then takes its part of a whole input
  /// itself.
  Layout input = Shard{-1};
  Layout output = Replicate{};
};

/// A norm, or an embedding of positions, that works on a cut of the sequence or, in a region, on some heads.
/// Its parameters are repeated, and their gradients are each rank's share.
struct SequenceParallel {
  int64_t dim = 1;
};

/// A stage whose input, the activation, is `input` outside of it and `desired` in it.
struct PrepareModuleInput {
  Layout input = Replicate{};
  Layout desired = Replicate{};
};

/// A stage whose result is `output` in it and `desired` outside.
struct PrepareModuleOutput {
  Layout output = Replicate{};
  Layout desired = Replicate{};
};

using ParallelStyle =
    std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput, PrepareModuleOutput>;

struct ParallelEntry {
  std::string modules;  ///< a pattern of names (util::matches_any())
  ParallelStyle style;
};
/// Entries in any order.
using ParallelPlan = std::vector<ParallelEntry>;

/// Options of a model's plan.
struct ParallelOptions {
  /// Between regions the sequence is cut over the ranks (Korthikanti et al., 2022); else activations are
  /// whole.
  bool sequence_parallel = true;
};

}  // namespace fsdp::nn
