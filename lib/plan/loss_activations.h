#pragma once

#include "plan/activation_parts.h"

namespace fsdp::plan {

/// The head of a llama or gpt2 and the loss of its scores on the tape.
class LossActivations : protected ActivationParts {
 public:
  LossActivations(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events)
      : ActivationParts(shape, tape, events) {}

  /// Leaves what is saved; the head's input goes where nobody saves it.
  void forward();
  /// Of the loss alone, which comes before any stage's: leaves the gradient of the scores.
  void backward_of_loss();
  /// Leaves the gradient of the head's input, and the weight's.
  void backward_of_head();
  /// Whether that of a table which is the embedding's too is still there when that one's comes.
  bool table_gradient_waits() const { return shape_.fused || !shape_.products_accumulate; }

 private:
  LinearLayers head() const { return {{"lm_head", hidden(), model().vocab_size}}; }
  /// Of one chunk of kernels::linear_cross_entropy.
  int64_t logits_chunk() const;
  void loss_forward();
  void loss_backward();
};

}  // namespace fsdp::plan
