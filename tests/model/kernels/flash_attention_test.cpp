// Attention within documents by one call of libtorch's flash attention, against attention to each document
// alone. The kernels are GPU ones; here they are this file's, of the CPU, which take the same arguments and
// compute document by document. libtorch's autograd is between them and the function under test.

#include "model/kernels/flash_attention.h"

#include <ATen/Functions.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "base/util/error.h"
#include "model/kernels/meta.h"

namespace fsdp::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Causal attention of the last tokens of a row. [tokens, heads, head_dim]
at::Tensor attention_alone(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t group = q.size(1) / k.size(1), tokens = q.size(0), length = k.size(0);
  const at::Tensor visible = at::ones({tokens, length}, at::kBool).tril(length - tokens);
  const auto heads = [](const at::Tensor& x, int64_t times) {
    return x.repeat_interleave(times, 1).transpose(0, 1).unsqueeze(0);
  };
  return at::scaled_dot_product_attention(heads(q, 1), heads(k, group), heads(v, group), visible)
      .squeeze(0)
      .transpose(0, 1)
      .contiguous();
}

/// The tokens of each document, as the kernels find them.
struct Part {
  int64_t begin, length;
};
std::vector<Part> parts_of(const at::Tensor& bounds, int64_t longest) {
  std::vector<Part> parts;
  for (int64_t i = 0; i + 1 < bounds.numel(); ++i) {
    const int64_t begin = bounds[i].item<int64_t>();
    parts.push_back({begin, bounds[i + 1].item<int64_t>() - begin});
    FSDP_CHECK(parts.back().length <= longest, "the kernels would leave out tokens");
  }
  return parts;
}

/// `More`: arguments that later versions of libtorch have.
template <typename... More>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bounds,
    const std::optional<at::Tensor>& bounds_of_keys, c10::SymInt longest, c10::SymInt, double dropout,
    bool is_causal, bool, std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, More...) {
  FSDP_CHECK(is_causal && dropout == 0 && !scale && bounds.has_value() == bounds_of_keys.has_value());
  at::Tensor y = at::empty_like(q);
  if (bounds) {
    for (const Part& part : parts_of(*bounds, longest.expect_int())) {
      const auto of = [&](const at::Tensor& x) { return x.narrow(0, part.begin, part.length); };
      of(y).copy_(attention_alone(of(q), of(k), of(v)));
    }
  } else {
    for (int64_t row = 0; row < q.size(0); ++row) y[row].copy_(attention_alone(q[row], k[row], v[row]));
  }
  const at::Tensor none = at::empty({0});
  return {y, none, none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor&,
    const at::Tensor&, const at::Tensor& bounds, const at::Tensor&, int64_t longest, int64_t, double,
    bool is_causal, const at::Tensor&, const at::Tensor&, std::optional<double>, std::optional<int64_t>,
    std::optional<int64_t>) {
  FSDP_CHECK(is_causal);
  Tensors all{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const c10::impl::ForceDispatchKeyGuard with_autograd(c10::default_included_set, c10::default_excluded_set);
  const at::AutoGradMode with_gradients(true);
  for (const Part& part : parts_of(bounds, longest)) {
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, part.begin, part.length); };
    Tensors leaves;
    for (const at::Tensor& x : {q, k, v}) leaves.push_back(of(x).detach().requires_grad_(true));
    const Tensors some =
        torch::autograd::grad({attention_alone(leaves[0], leaves[1], leaves[2])}, leaves, {of(dy)});
    for (size_t i = 0; i < all.size(); ++i) of(all[i]).copy_(some[i]);
  }
  return {all[0], all[1], all[2]};
}

TORCH_LIBRARY_IMPL(aten, CPU, operators) {
  operators.impl("_flash_attention_forward",
                 static_cast<at::_ops::_flash_attention_forward::schema*>(&forward));
  operators.impl("_flash_attention_backward", &backward);
}

/// Two rows of 12 tokens: documents of 5, 6 and 1 tokens, and one of 12. Grouped queries.
struct Batch {
  at::Tensor q = at::randn({2, 12, 4, 8}), k = at::randn({2, 12, 2, 8}), v = at::randn({2, 12, 2, 8}),
             dy = at::randn({2, 12, 4, 8});
  PackedDocuments documents{.bounds = at::tensor({0, 5, 11, 12, 24}, at::kInt), .longest = 12};
};

at::Tensor each_alone(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  Tensors all;
  for (const auto& [begin, length] : {Part{0, 5}, {5, 6}, {11, 1}, {12, 12}}) {
    const auto of = [begin = begin, length = length](const at::Tensor& x) {
      return x.flatten(0, 1).narrow(0, begin, length);
    };
    all.push_back(attention_alone(of(q), of(k), of(v)));
  }
  return at::cat(all).view(q.sizes());
}

TEST(FlashAttention, OfDocumentsIsThatOfEachAlone) {
  at::manual_seed(5);
  const Batch batch;
  const auto run = [&](const auto& function) {
    Tensors leaves;
    for (const at::Tensor& x : {batch.q, batch.k, batch.v}) leaves.push_back(x.clone().requires_grad_(true));
    at::Tensor y = function(leaves[0], leaves[1], leaves[2]);
    Tensors results = torch::autograd::grad({y}, leaves, {batch.dy});
    results.push_back(y);
    return results;
  };
  const Tensors expected = run(each_alone), found = run([&](const auto&q, const auto&k, const auto&v) {
                                              return flash_attention(q, k, v, batch.documents);
                                            });
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-6)) << "result " << i;
  }
}

TEST(FlashAttention, TakesPartsOfOneTensor) {
  at::manual_seed(6);
  const Tensors parts = at::randn({2, 12, 3 * 4 * 8}).chunk(3, -1);
  const auto heads = [&](int i) { return parts[static_cast<size_t>(i)].view({2, 12, 4, 8}); };
  EXPECT_TRUE(at::allclose(flash_attention(heads(0), heads(1), heads(2), Batch().documents),
                           each_alone(heads(0), heads(1), heads(2)), 1e-4, 1e-6));
}

TEST(FlashAttention, OfTheLastTokensSeesAllEarlierOnes) {
  at::manual_seed(7);
  const Batch batch;
  const at::Tensor whole = flash_attention_to_earlier(batch.q, batch.k, batch.v);
  EXPECT_TRUE(at::allclose(flash_attention_to_earlier(batch.q.narrow(1, 9, 3), batch.k, batch.v),
                           whole.narrow(1, 9, 3), 1e-4, 1e-6));
}

TEST(FlashAttention, IsForGpusInLowPrecision) {
  const auto heads = [](at::ScalarType type, int64_t width) {
    return at::empty({1, 4, 2, width}, at::TensorOptions(type).device(at::kMeta));
  };
  const auto can = [&](at::ScalarType type, int64_t width) {
    const at::Tensor x = heads(type, width);
    return can_use_flash_attention(x, x, x);
  };
  EXPECT_FALSE(can(at::kBFloat16, 64)) << "meta tensors stand for the CPU's";
  const MetaDevice gpu{.type = c10::kCUDA};
  const MetaDeviceGuard on_gpu(gpu);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(can(type, 64) && can(type, 8) && can(type, 256));
    EXPECT_FALSE(can(type, 4) || can(type, 36) || can(type, 264));
  }
  EXPECT_FALSE(can(at::kFloat, 64));
  EXPECT_FALSE(can_use_flash_attention(heads(at::kHalf, 64), heads(at::kBFloat16, 64), heads(at::kHalf, 64)));
}

}  // namespace
}  // namespace fsdp::kernels
