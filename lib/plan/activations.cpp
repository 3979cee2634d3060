#include "plan/activations.h"

#include "plan/activation_parts.h"
#include "plan/block_activations.h"
#include "plan/kernel_choices.h"
#include "plan/loss_activations.h"
#include "util/compute_threads.h"
#include "util/dtype.h"

namespace fsdp::plan {
namespace {

/// One pass, written down as the stages of lib/nn run.
class Pass : protected ActivationParts {
 public:
  Pass(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events)
      : ActivationParts(shape, tape, events), blocks_(shape, tape, events), loss_(shape, tape, events) {}

  void run() {
    forward();
    saved_ = tape_.live();
    backward();
  }

  int64_t saved() const { return saved_; }

 private:
  void forward() {
    events_.forward_begins("");
    embed();
    for (int64_t layer = 0; layer < model().num_hidden_layers; ++layer) {
      std::string path = block_path(layer);
      events_.forward_begins(path);
      if (recomputes("block")) {
        blocks_.forward_unrecorded(path);
      } else {
        blocks_.forward(path);
        if (norms_copy()) tape_.give(x());  // the block's input
      }
      events_.forward_ends(path);
    }
    norm_forward();
    loss_.forward();
    events_.forward_ends("");
  }

  void backward() {
    loss_.backward_of_loss();
    events_.backward_begins("");
    loss_.backward_of_head();
    norm_backward(/*residual=*/false);
    for (int64_t layer = model().num_hidden_layers; layer-- > 0;) {
      std::string path = block_path(layer);
      events_.backward_begins(path);
      bool again = recomputes("block");
      if (again) blocks_.forward(path);
      blocks_.backward(path);
      if (again) tape_.give(norms_copy() ? 2 * x() : x());  // the output of the second forward, the input
      events_.backward_ends(path);
    }
    embedding_backward();
    events_.backward_ends("");
  }

  void embed() {
    std::string path = table_path();
    events_.forward_begins(path);
    if (llama()) {
      tape_.take(x());
      return events_.forward_ends(path);
    }
    events_.forward_ends(path);
    int64_t positions = shape_.element * shape_.tokens * hidden();
    tape_.take(kLong * shape_.tokens);
    events_.forward_begins("transformer.wpe");
    tape_.touch(positions + 2 * x());
    tape_.take(x());
    events_.forward_ends("transformer.wpe");
  }

  std::string table_path() const { return path_of("model.embed_tokens", "transformer.wte"); }

  void embedding_backward() {
    int64_t table = model().vocab_size * hidden();
    std::string path = table_path();
    int64_t positions = llama() ? 0 : shape_.element * shape_.tokens * hidden();
    tape_.take(positions);  // the sum over rows
    events_.backward_begins(path);
    const bool waits = model().tie_word_embeddings && loss_.table_gradient_waits();
    if (shape_.embeddings_accumulate) {
      tape_.give(x());
      // The head's is added to what is there.
      if (waits && shape_.element < kFloat) tape_.touch(kFloat * table);
      if (waits) tape_.give(shape_.element * table);
    } else {
      tape_.take(shape_.element * table);
      tape_.give(x());
      if (waits) {
        const bool in_place = shape_.fused || shape_.onednn;  // else the head's gradient is a transposed view
        if (!in_place) tape_.take(shape_.element * table);    // the sum of both gradients
        tape_.give((in_place ? 1 : 2) * shape_.element * table);
      }
      accumulate(table);
    }
    events_.backward_ends(path);
    if (llama()) return;
    const int64_t position_table = model().max_position_embeddings * hidden();
    events_.backward_begins("transformer.wpe");
    if (!shape_.embeddings_accumulate) tape_.take(shape_.element * position_table);
    tape_.give(positions + kLong * shape_.tokens);
    if (!shape_.embeddings_accumulate) accumulate(position_table);
    events_.backward_ends("transformer.wpe");
  }

  BlockActivations blocks_;
  LossActivations loss_;
  int64_t saved_ = 0;
};

/// As shard/gradient_buffer.cpp has it: in fp32 buffers in which parameters are in one piece.
bool gradients_have_places(const config::Config& config) {
  return config.mixed_precision.reduce_dtype == "float32" && config.fsdp.layout == "flat";
}

int64_t element_of(const std::string& dtype) { return util::element_size(util::dtype_from_name(dtype)); }

}  // namespace

ActivationShape activation_shape(const config::Config& config) {
  const shard::MixedPrecisionOptions& precision = config.mixed_precision;
  ActivationShape shape;
  shape.model = config.model;
  shape.rows = config.data.micro_batch_size;
  shape.tokens = config.data.sequence_length;
  shape.element = element_of(precision.param_dtype);
  shape.buffer_element = element_of(precision.buffer_dtype);
  shape.converts_gradients = precision.param_dtype != precision.reduce_dtype && config.training.no_sync &&
                             config.training.gradient_accumulation_steps > 1;
  if (config.activation_checkpointing.mode != "none") {
    shape.recomputed = config.activation_checkpointing.stage_types;
  }
  shape.fused = config.training.fused_kernels && precision.param_dtype != "float16";
  shape.attends = shape.fused && has_attention_kernel(precision.param_dtype, nn::head_width(config.model));
  const bool onednn = avoids_mkl(config.model.matmul);
  const bool has_products = has_small_products(precision.param_dtype);
  shape.onednn = onednn && precision.param_dtype == "float32";
  shape.small_products = shape.onednn && has_products;
  shape.joins_products = onednn && has_products;
  const bool have_places = gradients_have_places(config);
  shape.products_accumulate = have_places && onednn && has_products;
  shape.embeddings_accumulate = have_places && shape.fused;
  shape.float8_accumulates = have_places;
  shape.places_have_gradients = config.training.no_sync && config.training.gradient_accumulation_steps > 1;
  shape.float8 = float8_choice(config);
  shape.float8_on_cpu = config.training.device == "cpu";
  shape.threads = util::default_compute_threads();
  return shape;
}

void run_micro_batch(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events) {
  Pass(shape, tape, events).run();
}

int64_t saved_activation_bytes(const ActivationShape& shape) {
  MemoryTape tape;
  StageEvents events;
  Pass pass(shape, tape, events);
  pass.run();
  return pass.saved();
}

}  // namespace fsdp::plan