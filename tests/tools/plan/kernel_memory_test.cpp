// The memory of kernels on GPUs, as the plan counts it.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <vector>

#include "model/kernels/flash_attention.h"
#include "model/kernels/fused.h"
#include "model/kernels/meta.h"
#include "tools/plan/meta_memory.h"

namespace fsdp::plan {
namespace {

TEST(AttentionOfDocuments, TakesTheMemoryOfLibtorchsKernels) {
  constexpr int64_t kRows = 2, kTokens = 100, kHeads = 4, kKvHeads = 2, kWidth = 40, kDocuments = 7;
  std::multiset<int64_t> taken;
  const MetaMemory memory({.takes =
                               [&](int64_t bytes) {
                                 taken.insert(bytes);
                                 return size_t{0};
                               },
                           .gives = [](size_t) {}});
  double flops = 0;
  const kernels::MetaDevice gpu{.type = c10::kCUDA, .multiplies = [&](const kernels::MetaProduct& product) {
                                  flops += product.flops();
                                }};
  const kernels::MetaDeviceGuard on_gpu(gpu);
  const at::TensorOptions meta(at::kMeta);
  const auto heads = [&](int64_t count) {
    return at::empty({kRows, kTokens, count, kWidth}, meta.dtype(at::kBFloat16)).requires_grad_(true);
  };
  const at::Tensor q = heads(kHeads), k = heads(kKvHeads), v = heads(kKvHeads);
  const at::Tensor bounds = at::empty({kDocuments + 1}, meta.dtype(at::kInt));
  at::Tensor y = kernels::flash_attention(q, k, v, {.bounds = bounds, .longest = 60});
  const int64_t all = kRows * kTokens, of_head = 2 * all * kWidth, sums = 4 * all * kHeads;
  EXPECT_EQ(y.sizes(), q.sizes());
  EXPECT_EQ(taken.count(sums), 1) << "logarithms of sums";
  EXPECT_EQ(flops, 2.0 * static_cast<double>(all * kHeads * 2 * 60 * kWidth));

  taken.clear();
  const at::Tensor dy = at::empty_like(y);
  const auto gradients = torch::autograd::grad({y}, {q, k, v}, {dy});
  // In fp32, with the widths of heads rounded to 32 and 128 rows more for each document.
  const int64_t rows = all + 128 * kDocuments;
  EXPECT_EQ(taken.count(4 * rows * kHeads * 64), 1) << "sums of gradients of queries";
  EXPECT_EQ(taken.count(4 * rows * kHeads), 1);
  EXPECT_EQ(taken.count(of_head * kHeads), 4) << "dy, and gradients of each query's queries, keys and values";
  EXPECT_EQ(taken.count(of_head * kKvHeads), 2);
}

TEST(LogitsOfAnOddVocabulary, TakeTheMemoryOfPaddedRowsOnAGpuOnly) {
  std::multiset<int64_t> taken;
  const MetaMemory memory({.takes =
                               [&](int64_t bytes) {
                                 taken.insert(bytes);
                                 return size_t{0};
                               },
                           .gives = [](size_t) {}});
  const at::TensorOptions meta(at::kMeta);
  const at::Tensor x = at::empty({16, 24}, meta.dtype(at::kBFloat16)).requires_grad_(true),
                   weight = at::empty({50, 24}, x.options()),
                   targets = at::empty({16}, meta.dtype(at::kLong));
  for (const auto device : {c10::kCPU, c10::kCUDA}) {
    const kernels::MetaDevice stands_for{.type = device};
    const kernels::MetaDeviceGuard guard(stands_for);
    taken.clear();
    kernels::linear_cross_entropy(x, weight, targets, kernels::Matmul::kOneDnn);
    EXPECT_EQ(taken.count(2 * 16 * 50), device == c10::kCPU ? 1 : 0);
    EXPECT_EQ(taken.count(2 * 16 * 64), device == c10::kCPU ? 0 : 1);
  }
}

TEST(LogitsOfAMicroBatch, AreKeptOnAGpuInPlaceOfAGradientOfTheWeight) {
  constexpr int64_t kRows = 1024, kWidth = 24, kVocabulary = 64, kChunk = 256;
  int64_t weights_taken = 0, kept = 0;
  std::vector<int64_t> sizes;
  const MetaMemory memory({.takes =
                               [&](int64_t bytes) {
                                 sizes.push_back(bytes);
                                 kept += bytes;
                                 return sizes.size() - 1;
                               },
                           .gives = [&](size_t at) { kept -= sizes[at]; }});
  const kernels::MetaDevice gpu{.type = c10::kCUDA};
  const kernels::MetaDeviceGuard on_gpu(gpu);
  const at::TensorOptions meta(at::kMeta);
  const at::Tensor x = at::empty({kRows, kWidth}, meta.dtype(at::kBFloat16)).requires_grad_(true),
                   weight = at::empty({kVocabulary, kWidth}, x.options()).requires_grad_(true),
                   targets = at::empty({kRows}, meta.dtype(at::kLong));
  constexpr int64_t kLogits = 2 * kRows * kVocabulary, kOfWeight = kVocabulary * kWidth, kScalar = 4;
  for (const bool at_once : {true, false}) {
    const int64_t before = kept;
    sizes.clear();
    kept = 0;
    {
      const at::Tensor loss =
          kernels::linear_cross_entropy(x, weight, targets, kernels::Matmul::kOneDnn,
                                        {.logits_bytes = at_once ? kLogits : 2 * kChunk * kVocabulary});
      weights_taken = std::ranges::count(sizes, 4 * kOfWeight);
      EXPECT_EQ(weights_taken, at_once ? 0 : 1);
      EXPECT_EQ(kept, 2 * kRows * kWidth + kScalar + (at_once ? kLogits : 2 * kOfWeight));
    }
    EXPECT_EQ(kept, 0) << before;
  }
}

}  // namespace
}  // namespace fsdp::plan
