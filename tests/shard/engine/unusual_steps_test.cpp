// Steps that are not one forward and one backward of everything, each against the same steps of a model
// without an engine.

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "support/chain_run.h"
#include "support/layout_under_test.h"
#include "support/nested_models.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::ChainStage;
using testing::every_matrix;
using testing::identical;

/// Steps on a chain, the same with and without an engine: forward and backward passes.
using Steps = std::function<void(ChainStage& chain)>;

/// Gradient of every parameter after `steps` without an engine; undefined for those that got none.
std::map<std::string, at::Tensor> gradients_without_engine(const Steps& steps) {
  ChainStage chain(4, 4);
  steps(chain);
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : chain.named_parameters()) {
    gradients[parameter.key()] = parameter.value().grad();
  }
  return gradients;
}

/// Checks the engine's gradients after `steps` with every rank on the same input, so that the mean over ranks
/// is the gradient, over strategies, prefetch and recomputation.
void expect_gradients_as_without_engine(const Steps& steps, bool first_derivative_passes_only = true) {
  auto expected = gradients_without_engine(steps);
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const char* prefetch : {"none", "implicit"}) {
      for (bool recompute : {false, true}) {
        if (recompute && !first_derivative_passes_only) continue;
        comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
          ShardOptions options = every_matrix(prefetch, *prefetch == 'n' ? "post" : "pre");
          options.strategy = strategy;
          ChainRun run(communicator, options, 4, recompute ? testing::Names{"block"} : testing::Names{});
          steps(run.chain);
          EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
          for (const Segment& segment : run.engine->segments()) {
            const at::Tensor& whole = expected.at(segment.name);
            const at::Tensor& flat = run.engine->units()[segment.unit]->storage().shard_gradient();
            ASSERT_EQ(flat.defined(), whole.defined()) << segment.name << strategy << prefetch << recompute;
            if (!whole.defined()) continue;
            int64_t length = segment.range.end - segment.range.begin;
            EXPECT_TRUE(at::allclose(flat.narrow(0, segment.shard_offset, length),
                                     whole.flatten().narrow(0, segment.range.begin, length), 1e-5, 1e-7))
                << segment.name << strategy << prefetch << recompute;
          }
        });
      }
    }
  }
}

at::Tensor input(float value) { return at::full({2, 4}, value); }

TEST(UnusualSteps, SeveralForwardsBeforeOneBackward) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    at::Tensor a = chain.forward(input(0.3f)).sum();
    at::Tensor b = chain.forward(input(-0.4f)).sum();
    at::Tensor c = chain.forward(input(0.9f)).sum();
    (a + 2 * b + c).backward();
  });
}

TEST(UnusualSteps, SeveralForwardsAndThenTheirBackwardsInAnyOrder) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    at::Tensor a = chain.forward(input(0.3f)).sum();
    at::Tensor b = chain.forward(input(-0.4f)).sum();
    a.backward();
    b.backward();
  });
}

TEST(UnusualSteps, AForwardOnTheOutputOfAnother) {
  expect_gradients_as_without_engine(
      [](ChainStage& chain) { chain.forward(chain.forward(input(0.3f))).sum().backward(); });
}

TEST(UnusualSteps, EvaluationBetweenForwardAndBackward) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    at::Tensor loss = chain.forward(input(0.3f)).sum();
    {
      at::NoGradGuard no_grad;
      chain.forward(input(0.7f));
    }
    loss.backward();
  });
}

TEST(UnusualSteps, EvaluationBetweenSteps) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    for (float value : {0.1f, 0.2f}) {
      chain.forward(input(value)).sum().backward();
      at::NoGradGuard no_grad;
      chain.forward(input(0.7f));
      chain.forward(input(0.8f));
    }
  });
}

TEST(UnusualSteps, AForwardWhoseLossIsDropped) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    chain.forward(input(0.5f));
    chain.forward(input(0.1f)).sum().backward();
  });
}

TEST(UnusualSteps, AUnitThatIsNeverUsed) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    chain.order = {0, 1, 3};
    for (float value : {0.1f, 0.2f}) chain.forward(input(value)).sum().backward();
  });
}

TEST(UnusualSteps, AUnitThatIsUsedInSomeStepsOnly) {
  expect_gradients_as_without_engine([](ChainStage& chain) {
    for (int step = 0; step < 4; ++step) {
      chain.order = step % 2 == 0 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0, 2, 3};
      chain.forward(input(0.1f * static_cast<float>(step))).sum().backward();
    }
  });
}

TEST(UnusualSteps, AUnitThatIsUsedSeveralTimesInAForward) {
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{0, 0, 1}, {0, 1, 0}, {3, 2, 3, 2}, {1, 1, 1, 0, 2, 3, 0}}) {
    expect_gradients_as_without_engine([&](ChainStage& chain) {
      chain.order = order;
      for (float value : {0.1f, 0.2f}) chain.forward(input(value)).sum().backward();
    });
  }
}

TEST(UnusualSteps, TwoBackwardsThroughARetainedGraph) {
  // A recomputed stage lets go of its input after the first.
  expect_gradients_as_without_engine(
      [](ChainStage& chain) {
        at::Tensor loss = chain.forward(input(0.3f)).sum();
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      },
      false);
}

TEST(UnusualSteps, ALossThatDependsOnPartOfTheOutput) {
  expect_gradients_as_without_engine(
      [](ChainStage& chain) { chain.forward(input(0.3f)).slice(1, 0, 1).sum().backward(); });
}

TEST(UnusualSteps, AnInputThatRequiresAGradientGetsIt) {
  ChainStage plain(4, 4);
  at::Tensor expected = input(0.3f).requires_grad_();
  plain.forward(expected).sum().backward();
  for (bool recompute : {false, true}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ChainRun run(communicator, every_matrix("implicit", "pre"), 4,
                   recompute ? testing::Names{"block"} : testing::Names{});
      for (int step = 0; step < 2; ++step) {
        at::Tensor x = input(0.3f).requires_grad_();
        run.chain.forward(x).sum().backward();
        EXPECT_TRUE(at::allclose(x.grad(), expected.grad(), 1e-5, 1e-7));
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
      }
    });
  }
}

TEST(UnusualSteps, WithoutSyncAUnitThatTheLastMicroBatchDoesNotUseIsReducedAllTheSame) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    auto gradients = [&](bool no_sync) {
      ChainRun run(communicator, every_matrix("implicit", "pre"));
      run.engine->set_requires_gradient_sync(!no_sync);
      run.step();
      run.engine->set_requires_gradient_sync(true);
      run.chain.order = {0, 1};
      run.step();
      EXPECT_FALSE(run.engine->has_unreduced_gradients());
      EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
      return run.gradients();
    };
    auto actual = gradients(true), expected = gradients(false);
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-7)) << i;
    }
  });
}

TEST(UnusualSteps, AUnitThatTheLastMicroBatchDoesNotUseIsReducedOverReplicasAllTheSame) {
  for (const comm::MeshOptions mesh : {comm::MeshOptions{.dcn = 2, .data = 2}, {.dcn = 4, .data = 1}}) {
    comm::run_ranks_as_threads(4, [&mesh](comm::Communicator& communicator) {
      const auto gradients = [&](bool each) {
        ShardOptions options = every_matrix("implicit", "pre");
        options.strategy = "hybrid_shard";
        ChainRun run(communicator, options, 4, {}, mesh);
        run.engine->set_requires_all_reduce(each);
        run.step();
        EXPECT_EQ(run.engine->has_unreduced_gradients(), !each);
        run.engine->set_requires_all_reduce(true);
        run.chain.order = {0, 1};
        run.step();
        EXPECT_FALSE(run.engine->has_unreduced_gradients());
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
        EXPECT_EQ(run.calls.count("all_reduce"), each ? 5 + 3 : 5);
        return run.gradients();
      };
      const auto actual = gradients(false), expected = gradients(true);
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-7)) << i;
      }
    });
  }
}

// ---- nested and chosen units

/// root {a {a.0, a.1}, b}: `a` has a weight beside those of its children and is a unit around units.
TEST(NestedUnits, AreGatheredInsideEachOtherAndTrainAlike) {
  auto make = [] {
    return testing::group(
        {testing::group({testing::matrix(4), testing::matrix(4)}, "pair"), testing::matrix(4)});
  };
  auto plain = make();
  plain->forward(input(0.3f)).sum().backward();
  for (bool manual : {false, true}) {
    for (const char* recompute : {"", "pair", "linear"}) {
      comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
        auto model = make();
        auto children = model->children();
        auto* pair = dynamic_cast<nn::Stage*>(children[0].get());
        auto* inner = dynamic_cast<nn::Stage*>(pair->children()[1].get());
        ShardOptions options = every_matrix("implicit", "pre");
        // The pair holds its first matrix, the root the last.
        if (manual) options.units = {pair, inner};
        auto engine = testing::shard_under_test(*model, options, testing::borrowed(communicator));
        EXPECT_EQ(engine->units().size(), manual ? 3u : 4u);
        if (*recompute) nn::checkpoint_activations(*model, {recompute});
        for (int step = 0; step < 2; ++step) {
          engine->zero_gradients();
          model->forward(input(0.3f)).sum().backward();
          EXPECT_EQ(engine->live_unsharded_bytes(), 0);
        }
        for (const Segment& segment : engine->segments()) {
          at::Tensor whole = plain->named_parameters()[segment.name].grad().flatten();
          int64_t length = segment.range.end - segment.range.begin;
          EXPECT_TRUE(at::allclose(engine->units()[segment.unit]->storage().shard_gradient().narrow(
                                       0, segment.shard_offset, length),
                                   whole.narrow(0, segment.range.begin, length), 1e-5, 1e-7))
              << segment.name << recompute << manual;
        }
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::shard
