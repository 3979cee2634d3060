#pragma once

// Activation checkpointing (Chen et al.: Training Deep Nets with Sublinear Memory Cost, 2016, section 4).
//
// Forward of a recomputed stage runs without recording: of everything it computes only the output lives on,
// and autograd holds the stage's input and context. Backward runs the stage again, now recording, and then a
// backward pass of its own through what was recorded. Memory falls from all activations of all stages to one
// input a stage and all activations of one stage; compute grows by one forward.
//
// It is a hook. Attach it after (so inside) one that shards the stage: backward then runs the stage again
// on the parameters that were gathered for backward anyway. Nothing of the parameters is kept between forward
// and backward, so their memory may be freed meanwhile. StageHooks of stages within the recomputed one run in
// forward with grad mode off, and again, with grad mode on, in backward.
//
// Loss and gradients are those without it, bit for bit. The one exception are parameters that several
// recomputed stages share: their gradients are summed stage by stage. Random numbers drawn from the default
// generators of the CPU and of the input's device are drawn again alike.
//
// Limits: first derivatives only, and the whole backward pass only (no gradients of chosen inputs); the
// tensors of the StageContext get no gradients and must not require any; autocast is not remembered.

#include <string>
#include <vector>

#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// Recomputes the stage that it is attached to. Does nothing where grad mode is off (evaluation), and where
/// neither the input nor a parameter of the stage requires a gradient.
class Recompute final : public StageHook {
 public:
  at::Tensor around(Stage& stage, const at::Tensor& input, const Next& next) override;
};

/// Attaches a Recompute to every stage inside `root` whose type_name() is in `stage_types`; to the outermost
/// ones only, because what lies inside them is recomputed with them. Throws Error(kUsage) for an empty list,
/// for a type that no stage has and for the type of the root itself, whose recomputation would keep nothing
/// and save nothing.
void checkpoint_activations(Stage& root, const std::vector<std::string>& stage_types);

/// The same as options say; nothing for mode "none". Throws Error(kUsage) for an unknown mode.
void apply_checkpointing(Stage& root, const CheckpointingOptions& options);

}  // namespace fsdp::nn
