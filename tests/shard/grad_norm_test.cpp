#include "shard/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/counting_communicator.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Gradients of all ranks as one vector, from the closed form: the gradient of the mean over ranks of
/// rank-dependent inputs, computed unsharded.
at::Tensor unsharded_gradient(int world) {
  testing::ChainStage chain(2, 3);
  for (int rank = 0; rank < world; ++rank)
    (chain.forward(at::full({1, 3}, 0.1f * rank)).sum() / world).backward();
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : chain.parameters()) flat.push_back(parameter.grad().flatten());
  return at::cat(flat);
}

void with_gradients(int world, const std::function<void(Engine&, testing::CountingCommunicator&)>& body) {
  comm::run_ranks_as_threads(world, [&](comm::Communicator& inner) {
    testing::CountingCommunicator communicator(inner);
    testing::ChainStage chain(2, 3);
    ShardOptions options;
    options.min_num_params = 1;
    auto engine = fully_shard(chain, options, testing::borrowed(communicator));
    chain.forward(at::full({1, 3}, 0.1f * communicator.rank())).sum().backward();
    communicator.clear();
    body(*engine, communicator);
  });
}

TEST(GradNorm, IsTheNormOfTheWholeGradientForEveryPAndWorldSize) {
  for (int world : {1, 2, 3, 5}) {
    at::Tensor whole = unsharded_gradient(world);
    for (double p : {1.0, 2.0, 3.0, kInfinity}) {
      double expected = at::linalg_vector_norm(whole, p, std::nullopt, false, at::kDouble).item<double>();
      with_gradients(world, [&](Engine& engine, testing::CountingCommunicator& communicator) {
        EXPECT_NEAR(grad_norm(engine, p), expected, 1e-5 * expected) << p << " over " << world;
        EXPECT_EQ(communicator.calls().size(), 1u);
        EXPECT_EQ(communicator.count("all_reduce"), 1);
      });
    }
  }
}

TEST(GradNorm, ClipsToTheLargestNormAllowed) {
  with_gradients(3, [](Engine& engine, testing::CountingCommunicator&) {
    double before = clip_grad_norm(engine, 0.01);
    EXPECT_GT(before, 0.01);
    EXPECT_NEAR(grad_norm(engine), 0.01, 1e-5);
  });
}

TEST(GradNorm, LeavesSmallGradientsAlone) {
  with_gradients(2, [](Engine& engine, testing::CountingCommunicator&) {
    double before = grad_norm(engine);
    EXPECT_EQ(clip_grad_norm(engine, before * 2), before);
    EXPECT_EQ(clip_grad_norm(engine, 0), before);
    EXPECT_EQ(grad_norm(engine), before);
  });
}

TEST(GradNorm, ReportsNaNOnEveryRankForEveryP) {
  for (double p : {1.0, 2.0, kInfinity}) {
    with_gradients(2, [&](Engine& engine, testing::CountingCommunicator& communicator) {
      if (communicator.rank() == 1) {
        engine.units()[1]->storage().shard_gradient().fill_(std::numeric_limits<float>::quiet_NaN());
      }
      EXPECT_FALSE(std::isfinite(clip_grad_norm(engine, 1.0, p))) << p;
    });
  }
}

}  // namespace
}  // namespace fsdp::shard
