#include "plan/block_activations.h"

#include <algorithm>

#include "plan/float8_products.h"

namespace fsdp::plan {
namespace {

/// Sizes of the tiles of libtorch's flash attention on the CPU, by the length of a row.
struct Tile {
  int64_t queries, keys;
};
Tile attention_tile(int64_t tokens) {
  int64_t queries = tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32;
  return {std::min(queries, tokens), std::min<int64_t>(512, tokens)};
}

}  // namespace

void BlockActivations::rotary_forward(int64_t width) {
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

void BlockActivations::rotary_backward(int64_t width) {
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

kernels::AttentionSizes BlockActivations::attention_sizes() const {
  return {.tokens = shape_.tokens, .head_dim = head_dim(), .element = shape_.element};
}

int64_t BlockActivations::attention_threads() const {
  return std::min(shape_.threads, shape_.rows * key_width() / head_dim());
}

int64_t BlockActivations::scores_forward() const {
  if (shape_.attends) return attention_sizes().forward_bytes() * attention_threads();
  Tile tile = attention_tile(shape_.tokens);
  int64_t scratch = kFloat * tile.queries * (tile.keys + 2 + head_dim());
  if (low()) scratch += shape_.element * tile.queries * tile.keys;
  return scratch * shape_.threads;
}

int64_t BlockActivations::scores_backward() const {
  if (shape_.attends) return attention_sizes().backward_bytes() * attention_threads();
  Tile tile = attention_tile(shape_.tokens);
  return 2 * tile.queries * tile.keys * (kFloat + (low() ? shape_.element : 0)) * shape_.threads;
}

void BlockActivations::float8_forward(const LinearLayers& layers, size_t begin, size_t end) {
  std::vector<int64_t> outs;
  for (size_t i = begin; i < end; ++i) {
    if (layers[i].float8) outs.push_back(layers[i].out);
  }
  // Those that are not alike multiply one by one.
  const bool alike = outs.size() == end - begin;
  if (alike) return Float8Products(shape_, tape_).forward(layers[begin].in, outs);
  for (int64_t out : outs) Float8Products(shape_, tape_).forward(layers[begin].in, {out});
}

void BlockActivations::attention_forward() {
  const int64_t keys = key_width(), queries = query_width();
  compute_attention(1);
  float8_forward(of_attention_, 0, of_attention_.size() - 1);
  tape_.take(wide(queries) + 2 * wide(keys));
  if (biased()) {
    tape_.take(2 * wide(keys));  // the sums, beside the products
    tape_.touch(wide(queries));
    tape_.give(2 * wide(keys));
  }
  if (llama()) {
    rotary_forward(queries);
    rotary_forward(keys);
  }
  if (drops_scores()) {
    // Repeated keys and values, weights before and after dropout; scores and their mask only for a moment.
    tape_.take(score_weights());
    tape_.touch(3 * wide32(model().num_attention_heads * shape_.tokens));
    tape_.take(wide(queries));
  } else {
    tape_.take(wide(queries) + log_sums());
    tape_.touch(scores_forward());
  }
  float8_forward(of_attention_, of_attention_.size() - 1, of_attention_.size());
  if (drops_hidden()) tape_.touch(2 * x());
  if (model().attention_bias) tape_.touch(2 * x());
  tape_.take(x());
}

void BlockActivations::attention_backward() {
  const int64_t keys = key_width(), queries = query_width();
  compute_attention(2);
  product_backward(of_attention_.back(), /*keep_gradient=*/true, /*saved=*/0);
  if (drops_hidden()) tape_.touch(x());
  tape_.take(wide(queries) + 2 * wide(keys));
  tape_.touch(drops_scores() ? 3 * wide32(model().num_attention_heads * shape_.tokens) + 4 * wide(queries)
                             : scores_backward());
  tape_.give(2 * wide(queries));  // the gradient of the result, the result
  tape_.give(wide(queries) + 2 * wide(keys) + (drops_scores() ? score_weights() : log_sums()));  // q, k, v
  if (!llama()) {
    tape_.take(3 * x());  // the three gradients as one tensor
    tape_.give(3 * x());
    product_backward(of_attention_.front(), false, x());
    return;
  }
  rotary_backward(keys);
  rotary_backward(queries);
  joint_product_backward({of_attention_.begin(), of_attention_.end() - 1}, x());
}

void BlockActivations::feed_forward_forward() {
  compute_feed_forward(1);
  const int64_t saved = !feed_forward_.is_gated() ? 2 : fuses_activation() ? 3 : 4;
  float8_forward(of_feed_forward_, 0, of_feed_forward_.size() - 1);
  tape_.take(saved * wide(model().intermediate_size));
  float8_forward(of_feed_forward_, of_feed_forward_.size() - 1, of_feed_forward_.size());
  if (drops_hidden()) tape_.touch(2 * x());
  if (feed_forward_.is_gated() && feed_forward_.output.biased)
    tape_.touch(2 * wide(model().intermediate_size) + 2 * x());
  tape_.take(x());
}

void BlockActivations::feed_forward_backward() {
  int64_t inner = model().intermediate_size, one = wide(inner);
  compute_feed_forward(2);
  if (drops_hidden()) tape_.touch(x());
  product_backward(of_feed_forward_.back(), /*keep_gradient=*/true, one);
  if (feed_forward_.is_gated()) {
    tape_.take(2 * one);  // of both factors
    tape_.give(3 * one);  // that of the product, and the factors
    if (!fuses_activation()) {
      tape_.take(one);
      tape_.give(2 * one);  // the gate and its gradient behind the activation
    }
    joint_product_backward({of_feed_forward_.begin(), of_feed_forward_.end() - 1}, x());
  } else {
    tape_.take(one);
    if (fuses_activation()) tape_.touch(sums_of_rows(inner, 1));
    tape_.give(2 * one);
    product_backward(of_feed_forward_.front(), false, x());
  }
}

void BlockActivations::inner_forward(const char* type, const std::string& path, Pass forward,
                                     Compute compute) {
  events_.forward_begins(path);
  if (recomputes(type)) {
    (this->*compute)(1);
    tape_.take(x());
  } else {
    (this->*forward)();
  }
  events_.forward_ends(path);
}

void BlockActivations::inner_backward(const char* type, const std::string& path, Pass forward,
                                      Pass backward) {
  events_.backward_begins(path);
  bool again = recomputes(type);
  if (again) (this->*forward)();
  (this->*backward)();
  if (again) tape_.give(x());  // the output of the second forward
  events_.backward_ends(path);
}

void BlockActivations::choose_layers(const std::string& path) {
  choose_float8(of_attention_, attention_path(path), shape_.float8);
  choose_float8(of_feed_forward_, feed_forward_path(path), shape_.float8);
}

void BlockActivations::forward(const std::string& path) {
  choose_layers(path);
  norm_forward();
  inner_forward("attention", attention_path(path), &BlockActivations::attention_forward,
                &BlockActivations::compute_attention);
  tape_.take(x());
  tape_.give(x());
  norm_forward();
  inner_forward("feed_forward", feed_forward_path(path), &BlockActivations::feed_forward_forward,
                &BlockActivations::compute_feed_forward);
  tape_.take(x());
  tape_.give(x());
  if (norms_copy()) tape_.give(x());  // what was between the two halves; the norm saved it in fp32
}

void BlockActivations::forward_unrecorded(const std::string& path) {
  choose_layers(path);
  events_.forward_begins(attention_path(path));
  compute_attention(1);
  events_.forward_ends(attention_path(path));
  events_.forward_begins(feed_forward_path(path));
  compute_feed_forward(1);
  events_.forward_ends(feed_forward_path(path));
  tape_.take(x());
}

void BlockActivations::backward(const std::string& path) {
  choose_layers(path);
  inner_backward("feed_forward", feed_forward_path(path), &BlockActivations::feed_forward_forward,
                 &BlockActivations::feed_forward_backward);
  norm_backward(/*residual=*/true);
  inner_backward("attention", attention_path(path), &BlockActivations::attention_forward,
                 &BlockActivations::attention_backward);
  norm_backward(/*residual=*/true);
}

}  // namespace fsdp::plan
