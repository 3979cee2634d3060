#pragma once

// What activation_checkpointing.mode = "selective" recomputes: the operations (nn::Stage::recomputable()) of the
// stages of stage_types with which a budget of memory costs the least time.
//
// memory_budget b is that of torch._functorch.config.activation_memory_budget: of the memory that autograd keeps from
// forward to backward, at most least + b (most - least), where mode "none" keeps `most` and mode "full" `least`. So 1
// recomputes nothing and 0 whole stages.
//
// The memory and the products of each operation are measured in recorded passes (tools/plan/recorded_pass.h), so models and
// kernels need to tell nothing, and an operation that saves nothing here (on another device, for another layer) is not
// chosen. Operations of a layer add up, so the choice is a knapsack: those with the most memory for a product come
// first, layer by layer. Where all of them together do not suffice, whole stages are recomputed, from the first on.

#include <cstdint>
#include <string>

#include "model/families/options.h"
#include "setup/config/config.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::plan {

struct Recomputation {
  nn::CheckpointingOptions options;       ///< with what was chosen
  int64_t most = 0, least = 0, kept = 0;  ///< bytes when backward begins, of a rank
  double flops = 0,
         recomputed_flops = 0;  ///< of products of a micro-batch: without recomputation, and in addition

  /// "up in 30 stages, attention_output in 29"
  std::string text() const;
};

/// Of the config's model on the first rank; config.mesh must have the sizes of context and model. Throws Error(kUsage)
/// like record_pass() and for types of stages that the model has not.
Recomputation choose_recomputation(const config::Config& config, PassDevice device = PassDevice::kOfConfig);

}  // namespace fsdp::plan
