#include "shard/state/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/util/error.h"
#include "support/counting_communicator.h"
#include "support/layout_under_test.h"
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

void with_gradients(int world, const std::function<void(Engine&, testing::CountingCommunicator&)>& body,
                    const ShardOptions& given = {}) {
  comm::run_ranks_as_threads(world, [&](comm::Communicator& inner) {
    testing::CountingCommunicator communicator(inner);
    testing::ChainStage chain(2, 3);
    ShardOptions options = given;
    options.min_num_params = 1;
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(communicator));
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

TEST(GradNorm, IsKnownFromTheReductionUntilGradientsChange) {
  with_gradients(2, [](Engine& engine, testing::CountingCommunicator&) {
    const double norm = grad_norm(engine);
    for (const auto& unit : engine.units()) {
      UnitStorage& storage = unit->storage();
      const at::Tensor gradient = storage.shard_gradient().clone();
      const auto squares = storage.gradient().squares();
      ASSERT_TRUE(squares.has_value());
      EXPECT_NEAR(*squares, gradient.to(at::kDouble).square().sum().item<double>(), 1e-12 * *squares);
      storage.shard_gradient().mul_(2);
      EXPECT_FALSE(storage.gradient().squares().has_value());
    }
    EXPECT_EQ(grad_norm(engine), 2 * norm);
    for (const auto& unit : engine.units()) {
      UnitStorage& storage = unit->storage();
      storage.gradient().add(storage.shard_gradient().clone(), 1.0);  // the squares of a part alone
      EXPECT_FALSE(storage.gradient().squares().has_value());
    }
    EXPECT_EQ(grad_norm(engine), 4 * norm);
  });
}

TEST(GradNorm, ClipsToTheLargestNormAllowed) {
  with_gradients(3, [](Engine& engine, testing::CountingCommunicator&) {
    double before = clip_grad_norm(engine, 0.01);
    EXPECT_GT(before, 0.01);
    EXPECT_NEAR(grad_norm(engine), 0.01, 1e-5);
  });
}

TEST(GradNorm, ClipsBfloat16ByANumberThatIsNotRoundedToIt) {
  ShardOptions options;
  options.mixed_precision.reduce_dtype = "bfloat16";
  options.mixed_precision.keep_low_precision_grads = true;
  with_gradients(
      2,
      [](Engine& engine, testing::CountingCommunicator&) {
        const at::Tensor& gradient = engine.units().back()->storage().shard_gradient();
        ASSERT_EQ(gradient.scalar_type(), at::kBFloat16);
        gradient.copy_(at::linspace(-2, 2, gradient.numel()));
        const at::Tensor before = gradient.to(at::kDouble);
        const double norm = grad_norm(engine), scale = 0.3 * norm / (norm + 1e-6);
        clip_grad_norm(engine, 0.3 * norm);
        EXPECT_TRUE(gradient.equal((before * scale).to(at::kBFloat16)));
      },
      options);
}

TEST(GradNorm, SaysHowGradientsAreClippedWithoutDoingIt) {
  with_gradients(3, [](Engine& engine, testing::CountingCommunicator&) {
    const double norm = grad_norm(engine);
    const Clipping half = clipping(engine, norm / 2);
    EXPECT_EQ(half.norm, norm);
    EXPECT_NEAR(half.scale, 0.5, 1e-5);
    EXPECT_EQ(grad_norm(engine), norm);
    EXPECT_EQ(clipping(engine, norm * 2).scale, 1);
    EXPECT_NEAR(clipping(engine, 0, 2, 1024).scale, 1.0 / 1024, 1e-12);
    engine.units()[0]->storage().shard_gradient().fill_(std::numeric_limits<float>::infinity());
    EXPECT_EQ(clipping(engine, 1.0).scale, 1) << "the norm is not finite";
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

TEST(GradNorm, NamesTheUnitNearestTheLossThatIsNotFinite) {
  with_gradients(3, [](Engine& engine, testing::CountingCommunicator& communicator) {
    EXPECT_EQ(first_unit_that_is_not_finite(engine), "");
    auto spoil = [&](size_t unit, int rank, float value) {
      at::Tensor gradient = engine.units()[unit]->storage().shard_gradient();
      if (communicator.rank() == rank) gradient[0].fill_(value);
    };
    spoil(1, 2, std::numeric_limits<float>::infinity());
    EXPECT_EQ(first_unit_that_is_not_finite(engine), "layers.0");
    spoil(2, 0, std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(first_unit_that_is_not_finite(engine), "layers.1");
  });
}

TEST(GradNorm, TakesTheLossScaleOutOfNormAndGradients) {
  with_gradients(2, [](Engine& engine, testing::CountingCommunicator&) {
    double norm = grad_norm(engine);
    auto multiply = [&](double factor) {
      for (const auto& unit : engine.units()) unit->storage().shard_gradient().mul_(factor);
    };
    multiply(1024);
    EXPECT_NEAR(clip_grad_norm(engine, 0, 2, 1024), norm, 1e-6 * norm);
    EXPECT_NEAR(grad_norm(engine), norm, 1e-6 * norm);
    multiply(1024);
    EXPECT_NEAR(clip_grad_norm(engine, norm / 2, 2, 1024), norm, 1e-6 * norm);
    EXPECT_NEAR(grad_norm(engine), norm / 2, 1e-5 * norm);
  });
}

TEST(GradValue, LimitsEachElementWithoutCommunication) {
  for (int world : {1, 2, 3}) {
    const at::Tensor whole = unsharded_gradient(world);
    const double limit = whole.abs().median().item<double>();
    for (double loss_scale : {1.0, 1024.0}) {
      with_gradients(world, [&](Engine& engine, testing::CountingCommunicator& communicator) {
        std::vector<at::Tensor> expected;
        double clipped = 0;
        for (const auto& unit : engine.units()) {
          at::Tensor gradient = unit->storage().shard_gradient();
          expected.push_back(gradient.clamp(-limit, limit));
          clipped += (expected.back() - gradient).abs().sum().item<double>();
          gradient.mul_(loss_scale);
        }
        if (world == 1) {
          EXPECT_GT(clipped, 0);
        }
        clip_grad_value(engine, limit, loss_scale);
        for (size_t i = 0; i < expected.size(); ++i) {
          const at::Tensor found = engine.units()[i]->storage().shard_gradient() / loss_scale;
          EXPECT_TRUE(found.equal(expected[i])) << world << " " << loss_scale << " " << i;
        }
        EXPECT_TRUE(communicator.calls().empty());
      });
    }
  }
}

TEST(GradNorm, RefusesGradientsThatAreNotReduced) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    for (const char* setter : {"set_requires_gradient_sync", "set_requires_all_reduce"}) {
      testing::ChainStage chain(2, 3);
      ShardOptions options;
      options.strategy = "no_shard";
      auto engine = testing::shard_under_test(chain, options, testing::borrowed(communicator));
      const bool all_reduce = std::string(setter) == "set_requires_gradient_sync";
      engine->set_requires_gradient_sync(!all_reduce);
      engine->set_requires_all_reduce(all_reduce);
      chain.forward(at::ones({1, 3})).sum().backward();
      try {
        grad_norm(*engine);
        ADD_FAILURE() << "expected an error";
      } catch (const util::Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUsage);
        EXPECT_NE(std::string(error.what()).find(setter), std::string::npos);
      }
    }
  });
}

// Sharded units beside replicated ones, whose gradients every rank holds whole, and beside frozen ones.
TEST(GradNorm, ClipsAsTheWholeModelWhateverIsSharded) {
  for (double norm_type : {1.0, 2.0, kInfinity}) {
    testing::RunPlan plan;
    plan.norm_type = norm_type;
    plan.max_norm = norm_type == 1.0 ? 5.0 : norm_type == 2.0 ? 0.3 : 0.05;
    plan.shard.min_num_params = 400;
    for (bool frozen : {false, true}) {
      if (frozen) plan.frozen = {"model.layers.1.*"};
      testing::RunResult expected = train_unsharded(plan);
      for (double norm : expected.norms)
        EXPECT_GT(norm, plan.max_norm) << norm_type << ": nothing is clipped";
      for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
        plan.shard.strategy = strategy;
        std::vector<std::string> all_patterns = {"", "*norm*", "model.layers.0.*"};
        for (const std::string& replicated : all_patterns) {
          if (!replicated.empty() && std::string(strategy) == "no_shard") continue;  // refused: all are
          plan.shard.replicated_parameters.clear();
          if (!replicated.empty()) plan.shard.replicated_parameters = {replicated};
          for (int world : {1, 2, 4}) {
            expect_close_runs(train_sharded(world, plan), expected,
                              concat("p ", norm_type, ", ", strategy, ", ", replicated, ", ", world));
          }
        }
      }
    }
    plan.shard = {};
  }
}

TEST(GradNorm, FindsTheUnitWithTheLargestGradient) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(3, 3);
    ShardOptions options;
    options.min_num_params = 1;
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(communicator));
    EXPECT_EQ(unit_with_largest_gradient(*engine), "");
    chain.forward(at::ones({2, 3})).sum().backward();
    // Only the second rank's part of it is large.
    if (communicator.rank() == 1) engine->units()[2]->storage().shard_gradient().fill_(1e6);
    EXPECT_EQ(unit_with_largest_gradient(*engine), engine->units()[2]->name());
  });
}

}  // namespace
}  // namespace fsdp::shard
