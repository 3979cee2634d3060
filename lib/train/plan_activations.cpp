#include "train/plan_activations.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/fused.h"
#include "util/dtype.h"

namespace fsdp::train {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kLong = 8;

/// Sizes of the tiles of libtorch's flash attention on the CPU, by the length of a row.
struct Tile {
  int64_t queries, keys;
};
Tile attention_tile(int64_t tokens) {
  int64_t queries = tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32;
  return {std::min(queries, tokens), std::min<int64_t>(512, tokens)};
}

/// One pass, written down as the stages of lib/nn run. x below is a tensor [N, D] of the compute type.
class Pass {
 public:
  Pass(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events)
      : shape_(shape), tape_(tape), events_(events) {}

  void run() {
    forward();
    saved_ = tape_.live();
    backward();
  }

  int64_t saved() const { return saved_; }

 private:
  // ---- sizes

  const nn::ModelOptions& model() const { return shape_.model; }
  bool llama() const { return model().architecture == "llama"; }
  bool low() const { return shape_.element < kFloat; }
  bool fused_block() const { return shape_.fused && llama(); }
  /// Whether norms compute on an fp32 copy of their input, and save that.
  bool norms_copy() const { return low() && !fused_block(); }
  int64_t count() const { return shape_.count(); }
  int64_t hidden() const { return model().hidden_size; }
  int64_t head_dim() const { return model().hidden_size / model().num_attention_heads; }
  int64_t key_width() const {
    return llama() ? head_dim() * model().num_key_value_heads : model().hidden_size;
  }
  /// [N, width] of the compute type, and in fp32.
  int64_t wide(int64_t width) const { return shape_.element * count() * width; }
  int64_t wide32(int64_t width) const { return kFloat * count() * width; }
  int64_t x() const { return wide(hidden()); }
  int64_t x32() const { return wide32(hidden()); }

  bool recomputes(const char* type) const {
    const auto& types = shape_.recomputed;
    return std::find(types.begin(), types.end(), type) != types.end();
  }

  std::string path_of(const char* llama_name, const char* gpt2_name) const {
    return llama() ? llama_name : gpt2_name;
  }
  std::string block_path(int64_t layer) const {
    return path_of("model.layers.", "transformer.h.") + std::to_string(layer);
  }

  // ---- parts of stages

  /// The gradient of a weight goes to where gradients are accumulated.
  void accumulate(int64_t elements) {
    if (shape_.converts_gradients) tape_.touch(kFloat * elements);
    tape_.give(shape_.element * elements);
  }

  enum class Into { kNew, kSum, kThere };  ///< the first gradient of an input, the second, the third

  /// y = x W. The gradient of y goes, unless the residual connection has it too; `saved` goes.
  void product_backward(int64_t in, int64_t out, bool keep_gradient, int64_t saved, Into into = Into::kNew) {
    tape_.take(shape_.element * in * out);
    tape_.take(wide(in));
    if (shape_.onednn)
      tape_.touch(wide(llama() ? out : in));  // a factor of the weight's gradient, transposed
    if (!keep_gradient) tape_.give(wide(out));
    tape_.give(saved);
    if (into == Into::kSum) {
      tape_.take(wide(in));
      tape_.give(2 * wide(in));
    } else if (into == Into::kThere) {
      tape_.give(wide(in));
    }
    accumulate(in * out);
  }

  /// Leaves the result, which the product behind it saves, and what backward needs.
  void norm_forward() {
    if (fused_block()) return tape_.take(wide32(1) + x());  // saved: the reciprocal roots; the result
    if (low()) tape_.take(x32());                           // the input in fp32, saved
    if (llama()) {
      tape_.touch(x32() + 2 * wide32(1));  // squares and their means
      tape_.take(wide32(1) + x32());       // saved: the reciprocal roots, the normed input
    } else {
      tape_.take(2 * wide32(1));  // saved: means and reciprocal deviations
      if (low()) tape_.take(2 * kFloat * hidden());
    }
    tape_.take(x32());
    if (low()) {
      tape_.take(x());
      tape_.give(x32());
    }
  }

  /// Takes the gradient of the result; leaves that of the input, added to the residual's where there is one.
  /// The saved input goes.
  void norm_backward(bool residual) {
    if (fused_block()) {
      tape_.take(x());
      tape_.give(2 * x() + wide32(1));  // the gradient of the result, the input
      if (residual) tape_.give(x());
      return;
    }
    if (low()) {
      tape_.take(x32());
      tape_.give(x());
    }
    bool added_at_once = residual && !low();
    if (llama()) {
      tape_.take(2 * x32());  // times the weight, and the weight's gradient
      tape_.give(3 * x32());  // the latter, the gradient, the normed input
      tape_.take(2 * x32());
      tape_.give((added_at_once ? 3 : 2) * x32());
      tape_.take(4 * x32());  // of the means, and the square's with two temporaries
      tape_.give(5 * x32());  // these and the input
      tape_.give(wide32(1));
    } else {
      tape_.take(x32());
      tape_.give(2 * x32());  // the gradient and the input
      tape_.give(2 * wide32(1) + (low() ? 2 * kFloat * hidden() : 0));
      if (added_at_once) tape_.give(x32());
    }
    if (!low()) return;
    tape_.take(x());
    tape_.give(x32());
    if (residual) tape_.give(x());
  }

  /// The rotation of queries or keys: [N, width] in, [N, width] out.
  void rotary_forward(int64_t width) {
    int64_t in = wide(width);
    if (fused_rotary()) return tape_.touch(in);  // the result takes the input's place
    int64_t mixed = std::max(shape_.element, shape_.buffer_element) * count() * width;
    bool converts = mixed != in;
    tape_.take(in + in / 2);  // the halves exchanged, one of them negated
    tape_.give(in / 2);
    for (int factor = 0; factor < 2; ++factor) {
      if (converts) tape_.touch(2 * mixed);
      tape_.take(mixed);
    }
    tape_.take(mixed);
    if (converts) {
      tape_.take(in);
      tape_.give(mixed);
    }
    tape_.give(2 * mixed + 2 * in);  // the products, the exchanged halves, the input
  }

  bool fused_rotary() const { return fused_block() && shape_.buffer_element == kFloat; }

  void rotary_backward(int64_t width) {
    int64_t in = wide(width);
    if (fused_rotary()) return tape_.touch(in);
    int64_t mixed = std::max(shape_.element, shape_.buffer_element) * count() * width;
    if (mixed != in) {
      tape_.take(mixed);
      tape_.give(in);
      for (int factor = 0; factor < 2; ++factor) {
        tape_.touch(mixed + in);
        tape_.take(in);
      }
      tape_.give(mixed);
    } else {
      tape_.take(2 * in);
      tape_.give(in);
    }
    tape_.touch(in);
    tape_.give(in / 2);  // the gradient of the exchanged halves becomes that of one half
    tape_.touch(in);
    tape_.give(in / 2);
  }

  int64_t scores_forward() const {
    Tile tile = attention_tile(shape_.tokens);
    int64_t scratch = kFloat * tile.queries * (tile.keys + 2 + head_dim());
    if (low()) scratch += shape_.element * tile.queries * tile.keys;
    return scratch * shape_.threads;
  }

  int64_t scores_backward() const {
    Tile tile = attention_tile(shape_.tokens);
    return 2 * tile.queries * tile.keys * (kFloat + (low() ? shape_.element : 0)) * shape_.threads;
  }

  int64_t log_sums() const { return wide32(model().num_attention_heads); }

  // ---- stages: forward leaves its output and what is saved; backward finds the gradient of the output,
  // which stays for the residual connection, and leaves the gradient of the input

  void attention_forward() {
    int64_t keys = key_width();
    tape_.take(x() + 2 * wide(keys));
    if (llama()) {
      rotary_forward(hidden());
      rotary_forward(keys);
    }
    tape_.take(x() + log_sums());
    tape_.touch(scores_forward());
    tape_.take(x());
  }

  void attention_backward() {
    int64_t keys = key_width();
    product_backward(hidden(), hidden(), /*keep_gradient=*/true, /*saved=*/0);
    tape_.take(x() + 2 * wide(keys));
    tape_.touch(scores_backward());
    tape_.give(2 * x());                            // the gradient of the result, the result
    tape_.give(x() + 2 * wide(keys) + log_sums());  // query, key, value
    if (!llama()) {
      tape_.take(3 * x());  // the three gradients as one tensor
      tape_.give(3 * x());
      product_backward(hidden(), 3 * hidden(), false, x());
      return;
    }
    rotary_backward(keys);
    rotary_backward(hidden());
    product_backward(hidden(), keys, false, 0);
    product_backward(hidden(), keys, false, 0, Into::kSum);
    product_backward(hidden(), hidden(), false, x(), Into::kThere);
  }

  void feed_forward_forward() {
    const int64_t saved = fused_block() ? 3 : llama() ? 4 : 2;
    tape_.take(saved * wide(model().intermediate_size));
    tape_.take(x());
  }

  void feed_forward_backward() {
    int64_t inner = model().intermediate_size, one = wide(inner);
    product_backward(inner, hidden(), /*keep_gradient=*/true, one);
    if (llama()) {
      tape_.take(2 * one);  // of both factors
      tape_.give(3 * one);  // that of the product, and the factors
      if (!fused_block()) {
        tape_.take(one);
        tape_.give(2 * one);  // the gate and its gradient behind silu
      }
      product_backward(hidden(), inner, false, 0);
      product_backward(hidden(), inner, false, x(), Into::kSum);
    } else {
      tape_.take(one);
      tape_.give(2 * one);
      product_backward(hidden(), inner, false, x());
    }
  }

  /// A stage inside a block that may be recomputed by itself.
  void inner_forward(const char* type, const std::string& path, void (Pass::*forward)()) {
    events_.forward_begins(path);
    if (recomputes(type)) {
      tape_.take(x());
    } else {
      (this->*forward)();
    }
    events_.forward_ends(path);
  }

  void inner_backward(const char* type, const std::string& path, void (Pass::*forward)(),
                      void (Pass::*backward)()) {
    events_.backward_begins(path);
    bool again = recomputes(type);
    if (again) (this->*forward)();
    (this->*backward)();
    if (again) tape_.give(x());  // the output of the second forward
    events_.backward_ends(path);
  }

  std::string attention_path(const std::string& block) const {
    return block + path_of(".self_attn", ".attn");
  }
  static std::string feed_forward_path(const std::string& block) { return block + ".mlp"; }

  void block_forward(const std::string& path) {
    norm_forward();
    inner_forward("attention", attention_path(path), &Pass::attention_forward);
    tape_.take(x());
    tape_.give(x());
    norm_forward();
    inner_forward("feed_forward", feed_forward_path(path), &Pass::feed_forward_forward);
    tape_.take(x());
    tape_.give(x());
    if (norms_copy()) tape_.give(x());  // what was between the two halves; the norm saved it in fp32
  }

  void block_forward_unrecorded(const std::string& path) {
    for (const std::string& inner : {attention_path(path), feed_forward_path(path)}) {
      events_.forward_begins(inner);
      events_.forward_ends(inner);
    }
    tape_.take(x());
  }

  void block_backward(const std::string& path) {
    inner_backward("feed_forward", feed_forward_path(path), &Pass::feed_forward_forward,
                   &Pass::feed_forward_backward);
    norm_backward(/*residual=*/true);
    inner_backward("attention", attention_path(path), &Pass::attention_forward, &Pass::attention_backward);
    norm_backward(/*residual=*/true);
  }

  void forward() {
    events_.forward_begins("");
    embed();
    for (int64_t layer = 0; layer < model().num_hidden_layers; ++layer) {
      std::string path = block_path(layer);
      events_.forward_begins(path);
      if (recomputes("block")) {
        block_forward_unrecorded(path);
      } else {
        block_forward(path);
        if (norms_copy()) tape_.give(x());  // the block's input
      }
      events_.forward_ends(path);
    }
    norm_forward();
    events_.forward_begins("lm_head");
    if (recomputes("head")) {
      tape_.touch(shape_.fused ? logits_chunk() : wide(model().vocab_size) + 2 * wide32(model().vocab_size));
    } else {
      loss_forward();
    }
    events_.forward_ends("lm_head");
    events_.forward_ends("");
  }

  /// Of one chunk of kernels::linear_cross_entropy.
  int64_t logits_chunk() const {
    return shape_.element * model().vocab_size *
           kernels::cross_entropy_chunk_rows(count(), model().vocab_size);
  }

  /// Leaves what is saved; the head's input goes where nobody saves it.
  void loss_forward() {
    int64_t logits = wide(model().vocab_size), log_probabilities = wide32(model().vocab_size);
    if (shape_.fused) {
      const int64_t rows = kernels::cross_entropy_chunk_rows(count(), model().vocab_size);
      const int64_t table = model().vocab_size * hidden(), chunk = logits_chunk();
      const bool sums = rows < count();  // in fp32
      tape_.take(x() + chunk);
      tape_.touch(shape_.element * rows * hidden());
      tape_.take((sums ? kFloat : shape_.element) * table);
      tape_.touch((sums ? shape_.element * table : 0) + (shape_.onednn ? chunk : 0));  // transposed, for it
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

  /// Leaves the gradient of the head's input, and the weight's.
  void loss_backward() {
    if (shape_.fused) return;  // they are there
    int64_t logits = wide(model().vocab_size), log_probabilities = wide32(model().vocab_size);
    tape_.take(2 * log_probabilities);
    tape_.give(2 * log_probabilities);
    if (low()) {
      tape_.take(logits);
      tape_.give(log_probabilities);
    }
  }

  void backward() {
    if (!recomputes("head")) loss_backward();
    events_.backward_begins("");
    head_backward();
    norm_backward(/*residual=*/false);
    for (int64_t layer = model().num_hidden_layers; layer-- > 0;) {
      std::string path = block_path(layer);
      events_.backward_begins(path);
      bool again = recomputes("block");
      if (again) block_forward(path);
      block_backward(path);
      if (again) tape_.give(norms_copy() ? 2 * x() : x());  // the output of the second forward, the input
      events_.backward_ends(path);
    }
    embedding_backward();
    events_.backward_ends("");
  }

  void head_backward() {
    int64_t table = model().vocab_size * hidden();
    events_.backward_begins("lm_head");
    if (recomputes("head")) {
      loss_forward();
      loss_backward();
    }
    if (shape_.fused) {
      accumulate(table);
    } else {
      product_backward(hidden(), model().vocab_size, false, x());
    }
    // The gradient of a tied table waits for the embedding's.
    if (model().tie_word_embeddings) tape_.take(shape_.element * table);
    events_.backward_ends("lm_head");
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
    tape_.take(shape_.element * table);
    tape_.give(x());
    if (model().tie_word_embeddings) {
      const bool in_place = shape_.fused || shape_.onednn;  // else the head's gradient is a transposed view
      if (!in_place) tape_.take(shape_.element * table);    // the sum of both gradients
      tape_.give((in_place ? 1 : 2) * shape_.element * table);
    }
    accumulate(table);
    events_.backward_ends(path);
    if (llama()) return;
    events_.backward_begins("transformer.wpe");
    tape_.take(shape_.element * model().max_position_embeddings * hidden());
    tape_.give(positions + kLong * shape_.tokens);
    accumulate(model().max_position_embeddings * hidden());
    events_.backward_ends("transformer.wpe");
  }

  const ActivationShape& shape_;
  MemoryTape& tape_;
  const StageEvents& events_;
  int64_t saved_ = 0;
};

int64_t element_of(const std::string& dtype) {
  return static_cast<int64_t>(c10::elementSize(util::dtype_from_name(dtype)));
}

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
  shape.onednn = precision.param_dtype == "float32" &&
                 kernels::matmul_by_name(config.model.matmul) == kernels::Matmul::kOneDnn;
  shape.threads = at::get_num_threads();
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

}  // namespace fsdp::train
