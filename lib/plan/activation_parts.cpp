#include "plan/activation_parts.h"

#include "plan/float8_products.h"

namespace fsdp::plan {

void ActivationParts::compute(const LinearLayers& layers, double times, double attention_flops) {
  Products of_token{.flops = attention_flops};
  for (const LinearLayer& layer : layers) {
    const double flops = 2 * static_cast<double>(layer.in) * static_cast<double>(layer.out);
    of_token.flops += flops;
    if (layer.float8) of_token.flops_in_float8 += flops;
  }
  times *= static_cast<double>(count());
  events_.computes({times * of_token.flops, times * of_token.flops_in_float8});
}

void ActivationParts::accumulate(int64_t elements) {
  if (shape_.converts_gradients) tape_.touch(kFloat * elements);
  tape_.give(shape_.element * elements);
}

void ActivationParts::product_backward(const LinearLayer& layer, bool keep_gradient, int64_t saved,
                                       Into into) {
  const auto& [name, in, out, float8] = layer;
  const bool accumulates = float8 ? shape_.float8_accumulates : shape_.products_accumulate;
  if (float8) {
    Float8Products(shape_, tape_).backward(in, {out});
  } else {
    tape_.take(wide(in));
    if (!accumulates) tape_.take(shape_.element * in * out);
    // A factor of the weight's gradient, transposed.
    if (shape_.onednn && !shape_.small_products) tape_.touch(wide(llama() ? out : in));
  }
  if (!keep_gradient) tape_.give(wide(out));
  tape_.give(saved);
  if (into == Into::kSum) {
    tape_.take(wide(in));
    tape_.give(2 * wide(in));
  } else if (into == Into::kThere) {
    tape_.give(wide(in));
  }
  if (!accumulates) accumulate(in * out);
}

void ActivationParts::joint_product_backward(const LinearLayers& layers, int64_t saved) {
  const auto float8 =
      std::count_if(layers.begin(), layers.end(), [](const LinearLayer& layer) { return layer.float8; });
  const bool all_float8 = float8 == std::ssize(layers);
  if (!all_float8 && (float8 > 0 || !shape_.joins_products)) {
    for (size_t i = layers.size(); i-- > 0;) {
      const bool first = i + 1 == layers.size();
      const Into into = first ? Into::kNew : i + 2 == layers.size() ? Into::kSum : Into::kThere;
      product_backward(layers[i], false, i == 0 ? saved : 0, into);
    }
    return;
  }
  const int64_t in = layers.front().in;
  const bool accumulates = all_float8 ? shape_.float8_accumulates : shape_.products_accumulate;
  std::vector<int64_t> outs;
  for (const LinearLayer& layer : layers) outs.push_back(layer.out);
  if (all_float8) {
    Float8Products(shape_, tape_).backward(in, outs);
  } else {
    tape_.take(wide(in));
    for (int64_t out : outs) {
      if (!accumulates) tape_.take(shape_.element * in * out);
    }
  }
  for (int64_t out : outs) tape_.give(wide(out));
  tape_.give(saved);
  for (int64_t out : outs) {
    if (!accumulates) accumulate(in * out);
  }
}

void ActivationParts::norm_forward() {
  if (shape_.fused) return tape_.take(norm_statistics() + x());  // these are saved; the result
  if (low()) tape_.take(x32());                                  // the input in fp32, saved
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

void ActivationParts::norm_backward(bool residual) {
  if (shape_.fused) {
    tape_.take(x());
    tape_.touch(sums_of_rows(hidden(), llama() ? 1 : 2));
    tape_.give(2 * x() + norm_statistics());  // the gradient of the result, the input
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

}  // namespace fsdp::plan
