// The kernels of embeddings and dropout for GPUs, emulated.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/kernels/cuda/dropout.cuh"
#include "model/kernels/cuda/embedding.cuh"
#include "model/kernels/fused.h"
#include "support/emulated_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

class CudaEmbedding : public OfType {
 protected:
  static constexpr int64_t kTable = 50;

  /// The gradient of a table [kTable, width] after the rows of dy were added at `ids`.
  static void expect_sums(const at::Tensor& ids, int64_t width, int64_t shift = 0) {
    SCOPED_TRACE(::testing::Message() << ids.numel() << " ids, width " << width);
    const Buffer dy(random({ids.numel(), width}), shift);
    const auto [sorted, order] = at::sort(ids, /*stable=*/true, 0, false);
    const Buffer sorted_ids(sorted), rows(order);
    const at::Tensor before = random({kTable, width}).to(at::kFloat);
    Buffer added(before, shift), own(at::zeros({kTable, width}, type()), shift);
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&added, &own}, [&](const EmulatedLaunch& launch) {
        EmbeddingGradRows all{.dy = dy.data(),
                              .ids = sorted_ids.data<int64_t>(),
                              .order = rows.data<int64_t>(),
                              .rows = ids.numel(),
                              .width = width};
        all.table = own.data();
        all.table_is_fp32 = type() == at::kFloat;
        cuda::embedding_backward<T>(launch, all);
        all.table = added.data();
        all.table_is_fp32 = all.adds = true;
        cuda::embedding_backward<T>(launch, all);
      });
    });
    const at::Tensor sums = at::zeros({kTable, width}, at::kDouble).index_add(0, ids, dy.in_double());
    expect_near(own.values(), sums, "a table of its own");
    expect_near(added.values(), sums + before.to(at::kDouble), "added", 1e-6);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaEmbedding, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         name_of_type);

TEST_P(CudaEmbedding, AddsUpTheRowsOfEachId) {
  for (int64_t width : {1, 7, 96, 264, 520}) expect_sums(at::randint(kTable, {60}, at::kLong), width);
  expect_sums(at::randint(kTable, {60}, at::kLong), 64, /*shift=*/1);
}

TEST_P(CudaEmbedding, AddsUpRunsOfAnyLength) {
  for (int64_t length : {1, 31, 32, 33, 63, 64, 65, 128, 129, 200}) {
    for (int64_t before : {0, 63}) {
      const at::Tensor ids = at::cat(
          {at::full({before}, 3, at::kLong), at::full({length}, 7, at::kLong), at::full({5}, 49, at::kLong)});
      expect_sums(ids.index({at::randperm(ids.numel())}), 16);
    }
  }
}

TEST_P(CudaEmbedding, TakesOneIdAndNone) {
  expect_sums(at::full({1}, 0, at::kLong), 40);
  expect_sums(at::full({300}, 49, at::kLong), 40);
  expect_sums(at::empty({0}, at::kLong), 40);
}

class CudaDropout : public OfType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaDropout, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         name_of_type);

TEST_P(CudaDropout, ChoosesBitForBitAsOnTheCpu) {
  for (int64_t shift : {0, 1}) {
    for (int64_t width : {0, 1, 2, 7, 8, 600, 4099, 5000}) {
      for (auto [p, first_value] : {std::pair{0.0, int64_t{0}}, {0.3, 0}, {0.3, 6}, {0.3, 13}}) {
        const RowPieces pieces{.begins = {first_value}};
        const Buffer x(random({3, width}), shift);
        Buffer y({3, width}, type(), shift);
        with_type([&]<typename T>(T) {
          run_under_all_schedules({&y}, [&](const EmulatedLaunch& launch) {
            cuda::dropout<T>(launch, {.x = x.data(),
                                      .y = y.data(),
                                      .rows = 3,
                                      .width = width,
                                      .key = 0xfedcba9876543210U,
                                      .first_row = 1000,
                                      .pieces = pieces,
                                      .p = p});
          });
        });
        EXPECT_TRUE(
            have_equal_bits(y.values(), kernels::dropout(x.values(), p, 0xfedcba9876543210U, 1000, pieces)))
            << width << " " << first_value;
      }
    }
  }
}

TEST_P(CudaDropout, OfPiecesIsThatOfTheWholeRow) {
  const Buffer x(random({6, 600}), 0);  // three rows, of two pieces each
  Buffer y({6, 600}, type(), 0);
  const RowPieces pieces{.count = 2, .begins = {600, 3000}};
  with_type([&]<typename T>(T) {
    run_under_all_schedules({&y}, [&](const EmulatedLaunch& launch) {
      cuda::dropout<T>(launch, {.x = x.data(),
                                .y = y.data(),
                                .rows = 6,
                                .width = 600,
                                .key = 7,
                                .first_row = 1000,
                                .pieces = pieces,
                                .p = 0.3});
    });
  });
  const at::Tensor parts = x.values().view({3, 1200});
  EXPECT_TRUE(have_equal_bits(y.values().view({3, 1200}), kernels::dropout(parts, 0.3, 7, 1000, pieces)));
  const at::Tensor whole = at::zeros({3, 3600}, parts.options());
  for (int64_t piece : {0, 1}) {
    whole.narrow(1, pieces.begins[piece], 600).copy_(parts.narrow(1, piece * 600, 600));
  }
  const at::Tensor dropped = kernels::dropout(whole, 0.3, 7, 1000);
  for (int64_t piece : {0, 1}) {
    EXPECT_TRUE(y.values()
                    .view({3, 1200})
                    .narrow(1, piece * 600, 600)
                    .equal(dropped.narrow(1, pieces.begins[piece], 600)));
  }
}

}  // namespace
}  // namespace fsdp::kernels::cuda
