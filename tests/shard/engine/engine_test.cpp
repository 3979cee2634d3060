#include "shard/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/util/error.h"
#include "shard/engine/fully_shard.h"
#include "shard/state/full_parameters.h"
#include "support/counting_communicator.h"
#include "support/layout_under_test.h"
#include "support/readable.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::borrowed;
using testing::ChainStage;
using testing::CountingCommunicator;

ShardOptions wrap_every_matrix() {
  ShardOptions options;
  options.min_num_params = 1;
  options.backward_prefetch = "none";
  options.forward_prefetch = "none";
  return options;
}

TEST(Engine, SmallParametersAndMoreRanksThanElementsTrainInClosedForm) {
  // y = tanh(W (x + b)) with W 3x3 over up to 8 ranks; every rank sees the same x, so the mean gradient is
  // the gradient.
  for (int world = 2; world <= 8; ++world) {
    ChainStage plain(1, 3);
    at::Tensor x = at::tensor({0.1f, -0.2f, 0.3f});
    plain.forward(x).sum().backward();
    at::Tensor expected;
    {
      at::NoGradGuard no_grad;
      expected = plain.layer(0).weight() - plain.layer(0).weight().grad();
    }
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      ChainStage chain(1, 3);
      auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
      chain.forward(x).sum().backward();
      testing::sgd_on_shards(*engine, 1.0);
      FullParameters full(*engine);
      EXPECT_TRUE(at::allclose(chain.layer(0).weight(), expected, 1e-6, 1e-7));
    });
  }
}

TEST(Engine, EachRankKeepsOneShareAndNothingStaysGatheredAfterAStep) {
  for (int world : {1, 2, 3, 4}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto options = testing::tiny_options();
      auto model = testing::make_initialized(options);
      int64_t parameters = nn::count_parameters(*model);
      ShardOptions shard;
      shard.min_num_params = 700;
      auto engine = testing::shard_under_test(*model, shard, borrowed(communicator));
      // Flat: less than an element a rank of each unit. Per parameter: less than a slice of the dimension.
      int64_t padding = static_cast<int64_t>(engine->units().size()) * world;
      if (!testing::flat_is_under_test()) {
        for (const Segment& segment : engine->segments()) {
          int64_t numel = c10::multiply_integers(segment.shape);
          padding += world * numel / *std::max_element(segment.shape.begin(), segment.shape.end());
        }
      }
      EXPECT_GE(engine->shard_bytes() * world, parameters * 4);
      EXPECT_LE(engine->shard_bytes() * world, (parameters + padding) * 4);
      for (int step = 0; step < 2; ++step) {
        engine->zero_gradients();
        testing::loss_of(*model, testing::token_rows(communicator.rank(), 2, 9, options.vocab_size))
            .backward();
        EXPECT_EQ(engine->live_unsharded_bytes(), 0);
        for (const auto& unit : engine->units()) {
          EXPECT_EQ(unit->state(), Unit::State::kSharded) << unit->name();
          EXPECT_EQ(unit->storage().shard_gradient().numel(), unit->storage().shard().numel());
          for (const auto& parameter : unit->storage().parameters())
            EXPECT_FALSE(testing::is_readable(parameter.tensor.grad()));
        }
      }
      // One rank holds everything.
      EXPECT_EQ(engine->peak_unsharded_bytes() > 0, world > 1);
      EXPECT_LT(engine->peak_unsharded_bytes(), 2 * (parameters + padding) * 4);
    });
  }
}

TEST(Engine, FullShardDividesParametersGradientsAndOptimizerState) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(3, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    chain.forward(at::ones({2, 4})).sum().backward();
    testing::RunPlan plan;
    plan.optimizer = optim::OptimizerOptions{};
    const auto optimizer = testing::optimizer_over(*engine, plan);
    optimizer->step(optim::shard_gradients(*engine), 0.01);
    int matrices = 0;
    for (size_t i = 0; i < engine->units().size(); ++i) {
      const Unit& unit = *engine->units()[i];
      if (!unit.name().starts_with("layers.")) continue;
      ++matrices;
      EXPECT_EQ(unit.storage().shard().numel(), 16 / 2);
      EXPECT_EQ(unit.storage().shard_gradient().numel(), 16 / 2);
      EXPECT_EQ(optimizer->state("exp_avg", i).numel(), 16 / 2);
    }
    EXPECT_EQ(matrices, 3);
  });
}

TEST(Engine, TheOptimizerUpdatesTheShardsThemselves) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(2, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    testing::RunPlan plan;
    plan.optimizer = optim::OptimizerOptions{};
    const auto optimizer = testing::optimizer_over(*engine, plan);
    const at::Tensor before = chain.forward(at::ones({2, 4}));
    before.sum().backward();
    for (size_t i = 0; i < engine->units().size(); ++i) {
      EXPECT_EQ(optimizer->parameters()[i].value.data_ptr(),
                engine->units()[i]->storage().shard().data_ptr());
    }
    optimizer->step(optim::shard_gradients(*engine), 0.1);
    engine->zero_gradients();
    EXPECT_FALSE(at::allclose(chain.forward(at::ones({2, 4})), before))
        << "the next forward has the new weights";
  });
}

TEST(Engine, FreesTheShardsOfOthersAfterTheForwardOfAUnit) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(3, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    const auto state_of = [&](const std::string& name) {
      return (*std::ranges::find(engine->units(), name, [](const auto& unit) { return unit->name(); }))
          ->state();
    };
    std::vector<Unit::State> states;
    chain.layer(2).probe = [&](const at::Tensor&) { states = {state_of("layers.0"), state_of("layers.1")}; };
    const at::Tensor loss = chain.forward(at::ones({2, 4})).sum();
    EXPECT_EQ(states, (std::vector(2, Unit::State::kSharded)));
    EXPECT_EQ(state_of("layers.2"), Unit::State::kUnsharded) << "backward begins with it";
    loss.backward();
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
  });
}

TEST(Engine, BackwardComputesTheGradientsOfWholeParameters) {
  const at::Tensor x = at::ones({2, 4});
  ChainStage plain(2, 4);
  plain.forward(x).sum().backward();
  const at::Tensor expected = plain.layer(0).weight().grad();
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ChainStage chain(2, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    at::Tensor seen;
    chain.layer(0).weight().register_hook([&](const at::Tensor& gradient) { seen = gradient.clone(); });
    chain.forward(x).sum().backward();
    ASSERT_TRUE(seen.defined());
    EXPECT_TRUE(at::allclose(seen, expected, 1e-6, 1e-7)) << "before the reduction, on every rank";
    for (const auto& unit : engine->units()) {
      if (unit->name() != "layers.0") continue;
      EXPECT_EQ(unit->storage().shard_gradient().numel(), 16 / 2);
    }
  });
}

TEST(Engine, WithoutInnerUnitsGathersTheWholeModelAtOnce) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    CountingCommunicator communicator(inner);
    ChainStage chain(3, 4);
    ShardOptions options = wrap_every_matrix();
    options.min_num_params = 1'000'000;
    auto engine = fully_shard(chain, options, borrowed(communicator));
    chain.forward(at::ones({2, 4})).sum().backward();
    const int64_t model = 3 * 16 + 4;
    std::vector<CountingCommunicator::Call> expected = {{"all_gather", "root", "forward", model / 2},
                                                        {"reduce_scatter", "root", "backward", model / 2}};
    EXPECT_EQ(communicator.calls(), expected);
    EXPECT_GE(engine->peak_unsharded_bytes(), model * 4);
  });
}

// A chain of N matrix units and the root.
TEST(Engine, CommunicatesEachUnitInOrderAndTheLastUnitIsNotGatheredTwice) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    CountingCommunicator communicator(inner);
    ChainStage chain(3, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    for (int step = 0; step < 2; ++step) {
      communicator.clear();
      chain.forward(at::ones({2, 4})).sum().backward();
      std::vector<CountingCommunicator::Call> expected = {
          {"all_gather", "root", "forward", 2},          {"all_gather", "layers.0", "forward", 8},
          {"all_gather", "layers.1", "forward", 8},      {"all_gather", "layers.2", "forward", 8},
          {"reduce_scatter", "layers.2", "backward", 8}, {"all_gather", "layers.1", "backward", 8},
          {"reduce_scatter", "layers.1", "backward", 8}, {"all_gather", "layers.0", "backward", 8},
          {"reduce_scatter", "layers.0", "backward", 8}, {"reduce_scatter", "root", "backward", 2}};
      EXPECT_EQ(communicator.calls(), expected);
    }
  });
}

// Payload of a step, in elements a rank: 3 matrices of 16 and a bias of 4 over 2 ranks.
TEST(Engine, StrategiesMoveWhatTheoryAsks) {
  auto one_step = [](const std::string& strategy, bool reshard) {
    std::map<std::string, int64_t> moved;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
      CountingCommunicator communicator(inner);
      ChainStage chain(3, 4);
      ShardOptions options = wrap_every_matrix();
      options.strategy = strategy;
      options.reshard_after_forward = reshard;
      auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
      chain.forward(at::ones({2, 4})).sum().backward();
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
      if (communicator.rank() != 0) return;
      for (const auto& call : communicator.calls()) moved[call.op] += call.numel;
    });
    return moved;
  };
  using Moved = std::map<std::string, int64_t>;
  const int64_t model = 3 * 8 + 2;
  // The last matrix and the root are not gathered twice.
  EXPECT_EQ(one_step("full_shard", true), (Moved{{"all_gather", model + 2 * 8}, {"reduce_scatter", model}}));
  EXPECT_EQ(one_step("full_shard", false), (Moved{{"all_gather", model}, {"reduce_scatter", model}}));
  EXPECT_EQ(one_step("shard_grad_op", true), (Moved{{"all_gather", model}, {"reduce_scatter", model}}));
  // An all-reduce moves what a reduce-scatter and an all-gather of its shards do.
  EXPECT_EQ(one_step("no_shard", true), (Moved{{"all_reduce", 2 * model}}));
}

TEST(Engine, EvaluationFreesEverythingAndReducesNothing) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    CountingCommunicator communicator(inner);
    ChainStage chain(3, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    at::NoGradGuard no_grad;
    chain.forward(at::ones({2, 4}));
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    EXPECT_EQ(communicator.count("all_gather"), 4);
    EXPECT_EQ(communicator.count("reduce_scatter"), 0);
  });
}

TEST(Engine, KnowsInWhichUnitsTheEndOfBackwardCanBeSeen) {
  auto model = testing::make_initialized(testing::tiny_options());
  ShardOptions options;
  options.wrap_stages = {"embedding", "block"};
  auto engine = testing::shard_under_test(*model, options, std::make_shared<comm::SingleCommunicator>());
  const auto unit = [&](const std::string& name) -> const Unit& {
    const auto found =
        std::ranges::find(engine->units(), name, [](const auto& each) { return each->name(); });
    FSDP_CHECK(found != engine->units().end(), name);
    return **found;
  };
  EXPECT_TRUE(engine->input_is_differentiable(unit("model.embed_tokens"))) << "before the first use";
  model->forward(at::zeros({1, 4}, at::kLong)).sum().backward();
  EXPECT_FALSE(engine->input_is_differentiable(unit("model.embed_tokens"))) << "token ids have no gradient";
  EXPECT_TRUE(engine->input_is_differentiable(unit("model.layers.0")));
}

TEST(Engine, AForwardWithoutBackwardDoesNotServeStaleWeights) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(2, 4);
    auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
    at::Tensor before = chain.forward(at::ones({2, 4}));
    {
      at::NoGradGuard no_grad;
      for (const auto& unit : engine->units()) unit->storage().shard().mul_(0.5);
    }
    EXPECT_FALSE(at::allclose(chain.forward(at::ones({2, 4})), before));
  });
}

TEST(Engine, TwoForwardsBeforeOneBackwardAddTheirGradients) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    at::Tensor a = at::ones({1, 4}), b = at::full({1, 4}, -0.5f);
    auto gradients = [&](bool together) {
      ChainStage chain(2, 4);
      auto engine = testing::shard_under_test(chain, wrap_every_matrix(), borrowed(communicator));
      if (together) {
        at::Tensor first = chain.forward(a).sum();
        (first + chain.forward(b).sum()).backward();
      } else {
        chain.forward(a).sum().backward();
        chain.forward(b).sum().backward();
      }
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
      std::vector<at::Tensor> flat;
      for (const auto& unit : engine->units()) flat.push_back(unit->storage().shard_gradient());
      return at::cat(flat);
    };
    EXPECT_TRUE(at::allclose(gradients(true), gradients(false), 1e-6, 1e-7));
  });
}

TEST(Engine, ResetAfterAnExceptionIsFollowedByACorrectStep) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    auto gradients_of = [&](ChainStage& chain, Engine& engine) {
      engine.zero_gradients();
      chain.forward(at::ones({2, 4})).sum().backward();
      std::vector<at::Tensor> flat;
      for (const auto& unit : engine.units()) flat.push_back(unit->storage().shard_gradient().clone());
      return at::cat(flat);
    };
    ShardOptions options = wrap_every_matrix();
    options.backward_prefetch = "pre";
    options.forward_prefetch = "explicit";
    ChainStage chain(3, 4);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    at::Tensor expected = gradients_of(chain, *engine);

    chain.layer(1).throws = true;
    EXPECT_THROW(chain.forward(at::ones({2, 4})), std::runtime_error);
    chain.layer(1).throws = false;
    engine->reset();
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    EXPECT_TRUE(at::equal(gradients_of(chain, *engine), expected));

    at::Tensor output = chain.forward(at::ones({2, 4}).requires_grad_());
    at::Tensor poisoned = output * 1;
    chain.layer(0).weight().register_hook([](const at::Tensor& g) -> at::Tensor {
      static thread_local int calls = 0;
      if (calls++ == 0) throw std::runtime_error("thrown in backward");
      return g;
    });
    EXPECT_THROW(poisoned.sum().backward(), std::runtime_error);
    EXPECT_THROW(chain.forward(at::ones({2, 4})), util::Error);  // says that reset() is due
    engine->reset();
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    EXPECT_TRUE(at::equal(gradients_of(chain, *engine), expected));
  });
}

TEST(Engine, SegmentsOfAllRanksCoverEveryParameterOnce) {
  std::mutex mutex;
  std::map<std::string, int64_t> covered, numel;
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(testing::tiny_options());
    ShardOptions shard;
    shard.min_num_params = 700;
    auto engine = testing::shard_under_test(*model, shard, borrowed(communicator));
    std::lock_guard lock(mutex);
    for (const Segment& segment : engine->segments()) {
      covered[segment.name] += segment.numel();
      numel[segment.name] = c10::multiply_integers(segment.shape);
    }
  });
  EXPECT_EQ(covered.size(), 3u * 9 + 3);
  EXPECT_EQ(covered, numel);
}

}  // namespace
}  // namespace fsdp::shard
