#include "plan/loss_activations.h"

#include "plan/kernel_choices.h"

namespace fsdp::plan {

int64_t LossActivations::logits_chunk() const {
  return shape_.element * model().vocab_size * cross_entropy_chunk_rows(count(), model().vocab_size);
}

void LossActivations::forward() {
  events_.forward_begins("lm_head");
  if (recomputes("head")) {
    compute(head(), 1);
    tape_.touch(shape_.fused ? logits_chunk() : wide(model().vocab_size) + 2 * wide32(model().vocab_size));
  } else {
    loss_forward();
  }
  events_.forward_ends("lm_head");
}

void LossActivations::loss_forward() {
  int64_t logits = wide(model().vocab_size), log_probabilities = wide32(model().vocab_size);
  compute(head(), shape_.fused ? 3 : 1);  // fused, with the gradients
  if (shape_.fused) {
    const int64_t rows = cross_entropy_chunk_rows(count(), model().vocab_size);
    const int64_t table = model().vocab_size * hidden(), chunk = logits_chunk();
    const bool sums = rows < count();  // in fp32
    tape_.take(x() + chunk);
    tape_.touch(shape_.element * rows * hidden());
    tape_.take((sums ? kFloat : shape_.element) * table);
    const bool transposes = shape_.onednn && !shape_.small_products;
    tape_.touch((sums ? shape_.element * table : 0) + (transposes ? chunk : 0));
    tape_.give(chunk);
    if (sums && low()) {
      tape_.take(shape_.element * table);
      tape_.give(kFloat * table);
    }
    return tape_.give(x());
  }
  tape_.take(logits);
  if (low()) {
    tape_.give(x());
    tape_.take(log_probabilities);  // the logits in fp32
  }
  tape_.take(log_probabilities);
  if (low()) tape_.give(log_probabilities);
  tape_.give(logits);
}

void LossActivations::loss_backward() {
  if (shape_.fused) return;  // they are there
  int64_t logits = wide(model().vocab_size), log_probabilities = wide32(model().vocab_size);
  tape_.take(2 * log_probabilities);
  tape_.give(2 * log_probabilities);
  if (low()) {
    tape_.take(logits);
    tape_.give(log_probabilities);
  }
}

void LossActivations::backward_of_loss() {
  if (!recomputes("head")) loss_backward();
}

void LossActivations::backward_of_head() {
  int64_t table = model().vocab_size * hidden();
  events_.backward_begins("lm_head");
  if (recomputes("head")) {
    loss_forward();
    loss_backward();
  }
  if (shape_.fused) {
    accumulate(table);
  } else {
    compute(head(), 2);
    product_backward(head().front(), false, x());
  }
  // The gradient of a tied table waits for the embedding's.
  if (model().tie_word_embeddings && table_gradient_waits()) tape_.take(shape_.element * table);
  events_.backward_ends("lm_head");
}

}  // namespace fsdp::plan
