#include "model/parallel/collectives.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "comm/fake/fake_communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/counting_communicator.h"

namespace fsdp::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Ranks of(comm::Communicator& communicator) { return {testing::borrowed(communicator), "layer"}; }

/// A rank's tensor of small whole numbers, whose sums are exact in 16 bits.
at::Tensor numbers(at::IntArrayRef shape, int64_t rank, at::ScalarType type = at::kFloat) {
  const at::Tensor all = at::arange(c10::multiply_integers(shape), at::kLong).view(shape);
  return (all * 7 + rank * 5).remainder(11).to(type);
}

/// The gradient that `function` gives x for the gradient `dy`.
at::Tensor gradient(const at::Tensor& x, const at::Tensor& dy,
                    const std::function<at::Tensor(const at::Tensor&)>& function) {
  const at::Tensor leaf = x.clone().requires_grad_();
  function(leaf).backward(dy);
  return leaf.grad();
}

class Collectives : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, Collectives, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(Collectives, MoveActivationsAndTheirGradientsTheOppositeWay) {
  const at::ScalarType type = GetParam();
  for (int64_t world : {2, 4}) {
    for (int64_t dimension : {0, 1, -1}) {
      SCOPED_TRACE(dimension);
      const std::vector<int64_t> part{4, 8, 4};
      std::vector<int64_t> whole = part;
      whole[static_cast<size_t>(dimension < 0 ? 2 : dimension)] *= world;
      std::vector<at::Tensor> parts, wholes;
      for (int64_t rank = 0; rank < world; ++rank) {
        parts.push_back(numbers(part, rank, type));
        wholes.push_back(numbers(whole, rank, type));
      }
      const at::Tensor joined = at::cat(parts, dimension), sum = at::stack(wholes).sum(0);
      comm::run_ranks_as_threads(static_cast<int>(world), [&](comm::Communicator& communicator) {
        const Ranks ranks = of(communicator);
        const auto rank = static_cast<size_t>(ranks.rank());
        const at::Tensor &mine = parts[rank], &all = wholes[rank];
        const auto own = [&](const at::Tensor& x) { return x.chunk(world, dimension)[rank]; };

        EXPECT_TRUE(at::equal(copy_to_ranks(all, ranks), all));
        EXPECT_TRUE(at::equal(gradient(all, all, [&](auto& x) { return copy_to_ranks(x, ranks); }), sum));
        EXPECT_TRUE(at::equal(reduce_from_ranks(all, ranks), sum));
        EXPECT_TRUE(at::equal(all, numbers(whole, ranks.rank(), type))) << "the input has changed";
        EXPECT_TRUE(at::equal(gradient(all, all, [&](auto& x) { return reduce_from_ranks(x, ranks); }), all));
        EXPECT_TRUE(at::equal(gather(mine, dimension, ranks), joined));
        EXPECT_TRUE(
            at::equal(gradient(mine, all, [&](auto& x) { return gather(x, dimension, ranks); }), own(sum)));
        EXPECT_TRUE(at::equal(gather_alike(mine, dimension, ranks), joined));
        EXPECT_TRUE(at::equal(gradient(mine, all, [&](auto& x) { return gather_alike(x, dimension, ranks); }),
                              own(all)));
        EXPECT_TRUE(at::equal(reduce_scatter(all, dimension, ranks), own(sum)));
        EXPECT_TRUE(at::equal(
            gradient(all, mine, [&](auto& x) { return reduce_scatter(x, dimension, ranks); }), joined));
        EXPECT_TRUE(at::equal(split(all, dimension, ranks), own(all)));
        EXPECT_TRUE(
            at::equal(gradient(all, mine, [&](auto& x) { return split(x, dimension, ranks); }), joined));
      });
    }
  }
}

TEST(LayerCollectives, TakeTensorsOfAnyStrides) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    const at::Tensor x = numbers({4, 6}, communicator.rank());
    EXPECT_TRUE(
        at::equal(gather(x.t(), 1, of(communicator)), gather(x.t().contiguous(), 1, of(communicator))));
    EXPECT_TRUE(at::equal(reduce_scatter(x.t(), 1, of(communicator)),
                          reduce_scatter(x.t().contiguous(), 1, of(communicator))));
  });
}

TEST(LayerCollectives, OfMetaTensorsHaveTheShapeAndAskForTheSameCollectives) {
  auto communicator =
      std::make_shared<testing::CountingCommunicator>(std::make_shared<comm::FakeCommunicator>(4));
  const Ranks ranks{communicator, "layer"};
  const at::Tensor x = at::empty({2, 8, 3}, at::TensorOptions().device(at::kMeta)).requires_grad_();
  for (const at::Tensor& y : {copy_to_ranks(x, ranks), reduce_from_ranks(x, ranks)}) {
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 8, 3}));
  }
  EXPECT_EQ(gather(x, 1, ranks).sizes(), at::IntArrayRef({2, 32, 3}));
  EXPECT_EQ(split(x, 1, ranks).sizes(), at::IntArrayRef({2, 2, 3}));
  const at::Tensor part = reduce_scatter(x, 1, ranks);
  EXPECT_EQ(part.sizes(), at::IntArrayRef({2, 2, 3}));
  part.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_THAT(communicator->names("forward"),
              ElementsAre("all_reduce layer layer", "all_gather layer layer", "reduce_scatter layer layer"));
  EXPECT_THAT(communicator->names("backward"), ElementsAre("all_gather layer layer"));
}

TEST(LayerCollectives, OfOneRankAreNothing) {
  auto communicator =
      std::make_shared<testing::CountingCommunicator>(std::make_shared<comm::SingleCommunicator>());
  const Ranks ranks{communicator, "layer"};
  const at::Tensor x = numbers({2, 3}, 0);
  for (const at::Tensor& y : {copy_to_ranks(x, ranks), reduce_from_ranks(x, ranks), gather(x, 1, ranks),
                              reduce_scatter(x, 1, ranks), split(x, 1, ranks), gather_alike(x, 1, ranks)}) {
    EXPECT_TRUE(y.is_same(x));
  }
  EXPECT_TRUE(communicator->calls().empty());
}

TEST(LayerCollectives, AreNamedByLayerAndPass) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    auto communicator = std::make_shared<testing::CountingCommunicator>(inner);
    const Ranks ranks{communicator, "mlp"};
    const at::Tensor x = numbers({2, 4}, 0).requires_grad_();
    reduce_scatter(gather(x, 1, ranks), 1, ranks).sum().backward();
    EXPECT_THAT(communicator->names("forward"),
                ElementsAre("all_gather layer mlp", "reduce_scatter layer mlp"));
    EXPECT_THAT(communicator->names("backward"),
                ElementsAre("all_gather layer mlp", "reduce_scatter layer mlp"));
  });
}

TEST(LayerCollectives, KeepTheCommunicatorUntilBackwardIsDone) {
  auto communicator = std::make_shared<comm::FakeCommunicator>(2);
  const std::weak_ptr<comm::Communicator> watched = communicator;
  const at::Tensor x = numbers({2, 4}, 0).requires_grad_();
  at::Tensor y = gather(x, 1, {std::move(communicator), "layer"});
  EXPECT_FALSE(watched.expired());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  y.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(LayerCollectives, RefuseSizesThatDoNotDivide) {
  const Ranks ranks{std::make_shared<comm::FakeCommunicator>(4), "model.layers.0.mlp"};
  try {
    split(at::zeros({2, 10}), 1, ranks);
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("model.layers.0.mlp: expected dimension 1 of [2, 10] to divide over 4 ranks; "
                          "found 10 = 2 x 4 + 2; pad it to 12"));
  }
}

TEST(Layouts, ChangeBetweenWholeAndOneCut) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    const Ranks ranks = of(communicator);
    const at::Tensor x = numbers({4, 4}, 0);
    EXPECT_TRUE(redistribute(x, Shard{1}, Shard{1}, ranks).is_same(x));
    const at::Tensor part = redistribute(x, Replicate{}, Shard{1}, ranks);
    EXPECT_TRUE(at::equal(part, x.chunk(2, 1)[static_cast<size_t>(ranks.rank())]));
    EXPECT_TRUE(at::equal(redistribute(part, Shard{1}, Replicate{}, ranks), x));
    EXPECT_THROW(redistribute(x, Shard{0}, Shard{1}, ranks), util::Error);
  });
}

}  // namespace
}  // namespace fsdp::parallel
