#include "state/weights/gguf_layout.h"

namespace fsdp::gguf {

namespace {

/// The rows as a grid of outer x middle x inner, whose first axes change places (`axis` 0) or whose last.
at::Tensor reordered(const at::Tensor& weight, int64_t outer, int64_t middle, int64_t axis) {
  return weight.reshape({outer, middle, weight.size(0) / outer / middle, -1})
      .transpose(axis, axis + 1)
      .reshape(weight.sizes());
}

at::Tensor converted(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options,
                     bool to_theirs) {
  const auto interleaved = [&](int64_t heads) {
    return reordered(weight, heads, to_theirs ? 2 : weight.size(0) / heads / 2, 1);
  };
  const int64_t heads = options.num_attention_heads;
  switch (stored) {
    case Stored::kQueryHeads:
      return interleaved(heads);
    case Stored::kKeyHeads:
      return interleaved(options.num_key_value_heads);
    case Stored::kQkvByHead:
      return to_theirs ? reordered(weight, heads, 3, 0) : reordered(weight, 3, heads, 0);
    case Stored::kTransposed:
      return weight.dim() == 2 ? weight.t().contiguous() : weight;
    case Stored::kPlusOne:
      return to_theirs ? weight.to(at::kFloat).add(1) : weight.to(at::kFloat).sub(1).to(weight.scalar_type());
    case Stored::kSame:
    case Stored::kStacked:
      break;
  }
  return weight;
}

}  // namespace

at::Tensor to_theirs(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options) {
  return converted(weight, stored, options, true);
}

at::Tensor to_ours(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options) {
  return converted(weight, stored, options, false);
}

}  // namespace fsdp::gguf
