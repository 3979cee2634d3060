#pragma once

// Activation checkpointing (Chen et al.: Training Deep Nets with Sublinear Memory Cost, 2016, section 4).
//
// Forward of a recomputed stage runs without autograd: only its output is kept, and autograd holds the
// stage's input and context. Backward runs the stage again, with autograd, and then an inner backward pass
// through it. Memory falls from all activations of all stages to one input per stage and all activations of
// one stage; compute grows by one forward.
//
// Attach the hook after (so inside) one that shards the stage: backward then recomputes with the parameters
// that were gathered for backward anyway. No parameter is kept between forward and backward, so their memory
// may be freed meanwhile. StageHooks of stages within the recomputed one run in forward with grad mode off,
// and again, with grad mode on, in backward.
//
// Loss and gradients do not change by a bit, except gradients of parameters that several recomputed stages
// share: these are summed stage by stage. Random numbers from the default generators of the CPU and of the
// input's device are the same in the recomputation, and it runs in the regions of autocast of the forward,
// also where backward() is called outside of them.
//
// Limits: first derivatives only, and the whole backward pass only (no gradients of chosen inputs); the
// tensors of the StageContext get no gradients and must not require any.

#include <string>
#include <vector>

#include "model/families/options.h"
#include "model/nn/offload.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// Recomputes the stage that it is attached to. Does nothing if grad mode is off (evaluation), or if neither
/// the input nor a parameter of the stage requires a gradient.
///
/// `tokens`: a stage that treats each token alone, such as a feed-forward, computes so many tokens of the
/// rows of its input, [B, T, D], at a time, in forward and in backward. So its activations are those of
/// `tokens` tokens. Gradients of its parameters are then sums over the ranges (Arctic Long Sequence Training,
/// 2025, section 3: TiledMLP). 0: all tokens at once.
class Recompute final : public StageHook {
 public:
  explicit Recompute(int64_t tokens = 0) : tokens_(tokens) {}
  at::Tensor around(Stage& stage, const at::Tensor& input, const Next& next) override;

 private:
  int64_t tokens_;
};

/// Throws Error(kUsage) for an empty list, for a type that no stage inside `root` has and for the type of the
/// root, whose recomputation would save no memory.
void check_recomputed_types(const Stage& root, const std::vector<std::string>& stage_types);

/// Attaches a Recompute to every stage inside `root` whose type_name() is in `stage_types`; to the outermost
/// ones only, because stages inside these are recomputed with them. Checks the types.
void checkpoint_activations(Stage& root, const std::vector<std::string>& stage_types);

/// checkpoint_activations(), with the inputs of the stages in host memory (model/nn/offload.h): all but that
/// of the last stage, whose backward comes first.
void offload_activations(Stage& root, const std::vector<std::string>& stage_types,
                         const OffloadOptions& options = {});

/// checkpoint_activations() by options; nothing for mode "none". With "selective" and "offload", which need
/// options.chosen, stages recompute the operations chosen for them or are recomputed as a whole, and what
/// they save moves to host memory (model/nn/offload.h). Feed-forwards compute options.feed_forward_tokens
/// tokens at a time, with any mode.
void apply_checkpointing(Stage& root, const CheckpointingOptions& options);

}  // namespace fsdp::nn
