#pragma once

// Recomputation: what the stages of stage_types do not keep on the device until backward, so that a budget of
// memory costs the least time. With activation_checkpointing.mode = "selective", backward recomputes
// operations (nn::Stage::recomputable()) or whole stages. With "offload", what stages save may also wait in
// the memory of the host (model/nn/offload.h); a CPU has no other memory, so there "offload" is "selective".
//
// memory_budget b is torch._functorch.config.activation_memory_budget: autograd keeps at most least + b (most
// - least) bytes from forward to backward. Mode "none" keeps `most`. `least` is what mode "full" keeps; with
// "offload", it is what is left when all stages are recomputed and their inputs are in host memory.
//
// The memory and products of each operation are measured in recorded passes (tools/plan/recorded_pass.h), so
// models and kernels declare nothing, and an operation that saves nothing on this device or in this layer is
// not chosen. The choice is a knapsack: operations with the most memory per product come first, layer by
// layer. If all of them do not suffice, whole stages are recomputed, from the first on; with "offload" their
// inputs are moved, which is little: a copy is done long before the stage.
//
// Moving all that a stage saves is another matter. Where a copy takes as long as the compute of n stages, it
// is free for every nth stage. So the chooser tries every spacing of such stages, with recomputation of the
// others as far as the budget still needs it, adds up the seconds of each, by the speed of the machine, and
// takes the fastest.

#include <cstdint>
#include <string>

#include "model/families/options.h"
#include "setup/config/config.h"
#include "tools/plan/recorded_pass.h"
#include "tools/plan/time.h"

namespace fsdp::plan {

struct Recomputation {
  nn::CheckpointingOptions options;       ///< options with the choice
  bool offloads = false;                  ///< whether stages could be moved to host memory
  int64_t most = 0, least = 0, kept = 0;  ///< bytes of a rank's device when backward begins
  double flops = 0,
         recomputed_flops = 0;  ///< products of a micro-batch without recomputation, and in addition

  /// "up in 30 stages, attention_output in 29"
  std::string text() const;
};

/// Chooses for the config's model on the first rank; config.mesh must have the sizes of context and model.
/// Throws Error(kUsage) like record_pass(), and if the model has no stages of a type in stage_types.
Recomputation choose_recomputation(const config::Config& config, const MachineSpeed& speed = {},
                                   PassDevice device = PassDevice::kOfConfig);

}  // namespace fsdp::plan
