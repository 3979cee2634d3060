#include "model/parallel/vocabulary.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/fake/fake_communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/counting_allocator.h"
#include "support/counting_communicator.h"

namespace fsdp::parallel {
namespace {

using kernels::Matmul;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 24;

struct Batch {
  at::Tensor x, weight, targets;

  Batch(int64_t rows, int64_t vocabulary, at::ScalarType type) {
    at::manual_seed(3);
    x = at::randn({rows, kHidden}).to(type);
    weight = at::randn({vocabulary, kHidden}).to(type);
    targets = at::randint(vocabulary, {rows}, at::kLong);
    targets[0] = kernels::kIgnored;
    targets[1] = vocabulary - 1;
  }
};

double difference(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kDouble);
  return ((found.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

TEST(VocabularyRows, AreThoseOfChunks) {
  const auto sizes = [](int64_t vocabulary, int64_t ranks) {
    std::vector<int64_t> sizes;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const VocabularyRows rows = vocabulary_rows(vocabulary, ranks, rank);
      sizes.push_back(rows.end - rows.begin);
    }
    return sizes;
  };
  EXPECT_THAT(sizes(50257, 2), ::testing::ElementsAre(25129, 25128));
  EXPECT_THAT(sizes(10, 4), ::testing::ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(sizes(8, 4), ::testing::ElementsAre(2, 2, 2, 2));
  try {
    vocabulary_rows(9, 4, 0);  // 3, 3, 3, 0
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("a vocabulary of 9 in parts of 3 leaves some of 4 ranks without a row; use at "
                          "most 3 ranks or a vocabulary of 12"));
  }
}

TEST(CutVocabulary, HasTheLossAndGradientsOfTheWhole) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (int64_t vocabulary : {12, 51, 4099}) {
      const Batch batch(37, vocabulary, type);
      for (const kernels::LossTerms& terms :
           {kernels::LossTerms{}, kernels::LossTerms{.label_smoothing = 0.1, .z_loss = 0.01},
            kernels::LossTerms{.expected_gradient = 64}}) {
        const at::Tensor x = batch.x.clone().requires_grad_(), weight = batch.weight.clone().requires_grad_();
        const at::Tensor loss = kernels::linear_cross_entropy(x, weight, batch.targets, Matmul::kMkl, terms);
        (loss * terms.expected_gradient).backward();
        for (int world : {1, 2, 4}) {
          comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
            const Ranks ranks{testing::borrowed(communicator), "lm_head"};
            const auto [begin, end] = vocabulary_rows(vocabulary, world, ranks.rank());
            const at::Tensor input = batch.x.clone().requires_grad_(),
                             part = batch.weight.narrow(0, begin, end - begin).clone().requires_grad_();
            const at::Tensor found = linear_cross_entropy(copy_to_ranks(input, ranks), part, batch.targets,
                                                          vocabulary, Matmul::kMkl, terms, ranks);
            (found * terms.expected_gradient).backward();
            const double tolerance = type == at::kFloat ? 1e-6 : 2e-2;
            EXPECT_NEAR(found.item<double>(), loss.item<double>(), tolerance * loss.item<double>());
            EXPECT_LE(difference(input.grad(), x.grad()), tolerance) << world << " " << vocabulary;
            EXPECT_LE(difference(part.grad(), weight.grad().narrow(0, begin, end - begin)), tolerance)
                << world << " " << vocabulary;
          });
        }
      }
    }
  }
}

TEST(CutVocabulary, HasTheLogProbabilitiesOfTheWhole) {
  const Batch batch(37, 51, at::kFloat);
  const at::Tensor factors = at::linspace(-1, 1, 37);
  const at::Tensor x = batch.x.clone().requires_grad_(), weight = batch.weight.clone().requires_grad_();
  const auto whole = kernels::linear_log_probs(x, weight, batch.targets, Matmul::kMkl);
  whole.log_probs.backward(factors);
  for (int world : {1, 2, 4}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      const Ranks ranks{testing::borrowed(communicator), "lm_head"};
      const auto [begin, end] = vocabulary_rows(51, world, ranks.rank());
      const at::Tensor input = batch.x.clone().requires_grad_(),
                       part = batch.weight.narrow(0, begin, end - begin).clone().requires_grad_();
      const auto found =
          linear_log_probs(copy_to_ranks(input, ranks), part, batch.targets, 51, Matmul::kMkl, {}, ranks);
      EXPECT_LE(difference(found.log_probs, whole.log_probs), 1e-6);
      EXPECT_TRUE(at::equal(found.is_most, whole.is_most));
      found.log_probs.backward(factors);
      EXPECT_LE(difference(input.grad(), x.grad()), 1e-6) << world;
      EXPECT_LE(difference(part.grad(), weight.grad().narrow(0, begin, end - begin)), 1e-6) << world;
    });
  }
}

TEST(CutVocabulary, SendsFourNumbersOfEachRow) {
  constexpr int64_t kRows = 2'000, kVocabulary = 40'000;
  const int64_t chunk = kernels::cross_entropy_chunk_rows(kRows, kVocabulary / 2);
  ASSERT_LT(chunk, kRows);  // several chunks
  const Batch batch(kRows, kVocabulary, at::kFloat);
  auto communicator =
      std::make_shared<testing::CountingCommunicator>(std::make_shared<comm::FakeCommunicator>(2));
  linear_cross_entropy(batch.x, batch.weight.narrow(0, 0, kVocabulary / 2), batch.targets, kVocabulary,
                       Matmul::kMkl, {}, {communicator, "lm_head"});
  int64_t numbers = 0;
  for (const auto& call : communicator->calls()) {
    EXPECT_EQ(call.op, "all_gather");
    EXPECT_EQ(call.dtype, at::kDouble);
    numbers += call.numel;
  }
  EXPECT_EQ(std::ssize(communicator->calls()), (kRows + chunk - 1) / chunk);
  EXPECT_EQ(numbers, 4 * kRows);
}

TEST(CutVocabulary, HoldsALogitOfItsOwnPartOnly) {
  constexpr int64_t kRows = 256, kVocabulary = 40'000, kWorld = 4;
  const Batch batch(kRows, kVocabulary, at::kFloat);
  const Ranks ranks{std::make_shared<comm::FakeCommunicator>(kWorld), "lm_head"};
  const at::Tensor weight = batch.weight.narrow(0, 0, kVocabulary / kWorld).clone().requires_grad_();
  const testing::CountingAllocator::Scope memory;
  linear_cross_entropy(batch.x, weight, batch.targets, kVocabulary, Matmul::kMkl, {}, ranks).backward();
  const int64_t of_part = kRows * kVocabulary / kWorld * 4, gradient = weight.numel() * 4;
  EXPECT_GE(memory.peak_bytes(), of_part);
  EXPECT_LE(memory.peak_bytes(), of_part + 4 * gradient + (1 << 20));
  EXPECT_LE(memory.peak_bytes(), of_part * kWorld / 2);
}

TEST(CutVocabulary, RefusesTargetsOutsideTheWhole) {
  Batch batch(4, 12, at::kFloat);
  batch.targets[2] = 12;
  const Ranks ranks{std::make_shared<comm::FakeCommunicator>(2), "lm_head"};
  EXPECT_THROW(
      linear_cross_entropy(batch.x, batch.weight.narrow(0, 0, 6), batch.targets, 12, Matmul::kMkl, {}, ranks),
      util::Error);
}

TEST(CutEmbedding, SumsToTheWholeAndLeavesEachRankItsGradient) {
  constexpr int64_t kVocabulary = 51;
  at::manual_seed(3);
  const at::Tensor table = at::randn({kVocabulary, kHidden}),
                   ids = at::randint(kVocabulary, {3, 20}, at::kLong), dy = at::randn({3, 20, kHidden});
  const at::Tensor whole = table.clone().requires_grad_();
  at::embedding(whole, ids).backward(dy);
  for (int world : {1, 2, 4}) {
    for (bool fused : {false, true}) {
      comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
        const Ranks ranks{testing::borrowed(communicator), "embed_tokens"};
        const auto [begin, end] = vocabulary_rows(kVocabulary, world, ranks.rank());
        const at::Tensor part = table.narrow(0, begin, end - begin).clone().requires_grad_();
        const at::Tensor y = reduce_from_ranks(embedding_part(part, ids, kVocabulary, fused, ranks), ranks);
        EXPECT_TRUE(at::equal(y, at::embedding(table, ids)));
        y.backward(dy);
        EXPECT_TRUE(at::allclose(part.grad(), whole.grad().narrow(0, begin, end - begin)));
      });
    }
  }
}

TEST(CutVocabulary, GivesAllScoresWhereTheyAreAskedFor) {
  const at::Tensor logits = at::arange(2 * 51, at::kFloat).view({2, 51});
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    const Ranks ranks{testing::borrowed(communicator), "lm_head"};
    const auto [begin, end] = vocabulary_rows(51, 4, ranks.rank());
    const at::Tensor part = logits.narrow(1, begin, end - begin).clone().requires_grad_();
    const at::Tensor all = gather_logits(part, 51, ranks);
    EXPECT_TRUE(at::equal(all, logits));
    all.backward(logits);
    EXPECT_TRUE(at::equal(part.grad(), logits.narrow(1, begin, end - begin)));
  });
}

}  // namespace
}  // namespace fsdp::parallel
