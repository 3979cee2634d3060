#pragma once

// Recomputation: the operations (nn::Stage::recomputable()) that activation_checkpointing.mode = "selective"
// recomputes in the stages of stage_types, so that a budget of memory costs the least time.
//
// memory_budget b is torch._functorch.config.activation_memory_budget: autograd keeps at most least + b (most
// - least) bytes from forward to backward, where mode "none" keeps `most` and mode "full" `least`. So 1
// recomputes nothing and 0 recomputes whole stages.
//
// The memory and products of each operation are measured in recorded passes (tools/plan/recorded_pass.h), so
// models and kernels declare nothing, and an operation that saves nothing on this device or in this layer is
// not chosen. The choice is a knapsack: operations with the most memory per product come first, layer by
// layer. If all of them do not suffice, whole stages are recomputed, from the first on.

#include <cstdint>
#include <string>

#include "model/families/options.h"
#include "setup/config/config.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::plan {

struct Recomputation {
  nn::CheckpointingOptions options;       ///< options with the chosen operations
  int64_t most = 0, least = 0, kept = 0;  ///< bytes of a rank when backward begins
  double flops = 0,
         recomputed_flops = 0;  ///< products of a micro-batch without recomputation, and in addition

  /// "up in 30 stages, attention_output in 29"
  std::string text() const;
};

/// Chooses for the config's model on the first rank; config.mesh must have the sizes of context and model.
/// Throws Error(kUsage) like record_pass(), and if the model has no stages of a type in stage_types.
Recomputation choose_recomputation(const config::Config& config, PassDevice device = PassDevice::kOfConfig);

}  // namespace fsdp::plan
