// Outside of forward, backward and FullParameters, a rank has its shard only: whoever touches a weight or a
// gradient of the module is told so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules.h>

#include "shard/state/full_parameters.h"
#include "support/chain_run.h"
#include "support/readable.h"

namespace fsdp::shard {
namespace {

using ::testing::AllOf;
using testing::ChainRun;
using testing::every_matrix;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::torch_error_of;

const auto kNamesTheRemedy =
    AllOf(StartsWith("parameter layers.1.weight: expected a read in forward or backward"),
          HasSubstr("FullParameters"), HasSubstr("full_state_dict"));

TEST(WeightsAtRest, EveryAccessNamesTheParameterAndTheRemedy) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix());
    const at::Tensor& weight = run.chain.layer(1).weight();
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(weight.sizes(), (at::IntArrayRef{4, 4}));
      EXPECT_THAT(torch_error_of([&] { weight.sum(); }), kNamesTheRemedy);
      EXPECT_THAT(torch_error_of([&] { weight[0][0].item<float>(); }), kNamesTheRemedy);
      EXPECT_THAT(torch_error_of([&] { weight.t().clone(); }), kNamesTheRemedy);
      EXPECT_THAT(torch_error_of([&] { weight.to(at::kDouble); }), kNamesTheRemedy);
      EXPECT_THAT(torch_error_of([&] { weight.data_ptr<float>(); }), kNamesTheRemedy);
      EXPECT_THAT(torch_error_of([&] { at::linear(at::ones({1, 4}), weight); }), kNamesTheRemedy);
      EXPECT_THAT(torch_error_of([&] { torch::nn::init::zeros_(weight); }), kNamesTheRemedy);
      run.step();
    }
  });
}

TEST(WeightsAtRest, AViewMadeAtRestStaysUnreadable) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix());
    const at::Tensor view = run.chain.layer(1).weight().detach().t();
    const FullParameters full(*run.engine);
    EXPECT_THAT(torch_error_of([&] { view.sum(); }), kNamesTheRemedy);
  });
}

TEST(WeightsAtRest, AreReadableWhileFullParametersIsOpenAndAfterTheSharding) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix());
    testing::ChainStage plain(4, 4);
    const at::Tensor& weight = run.chain.layer(1).weight();
    {
      const FullParameters full(*run.engine);
      EXPECT_TRUE(at::equal(weight, plain.layer(1).weight()));
    }
    EXPECT_THAT(torch_error_of([&] { weight.sum(); }), kNamesTheRemedy);
    run.engine->unshard();
    EXPECT_TRUE(at::equal(weight, plain.layer(1).weight()));
  });
}

TEST(WeightsAtRest, AreUnreadableAgainAfterAForwardThatFailed) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix());
    const at::Tensor wrong_shape = at::ones({2, 5});
    EXPECT_NE(torch_error_of([&] { run.chain.forward(wrong_shape); }), "");
    run.engine->reset();
    EXPECT_THAT(torch_error_of([&] { run.chain.layer(1).weight().sum(); }), kNamesTheRemedy);
    run.step();
  });
}

TEST(GradientsAtRest, NameFsdpParameters) {
  for (int ranks : {1, 2}) {
    comm::run_ranks_as_threads(ranks, [](comm::Communicator& communicator) {
      ChainRun run(communicator, every_matrix());
      const at::Tensor& weight = run.chain.layer(1).weight();
      EXPECT_FALSE(weight.grad().defined());
      for (int micro = 0; micro < 2; ++micro) {
        run.step();
        ASSERT_TRUE(weight.grad().defined());
        EXPECT_EQ(weight.grad().sizes(), weight.sizes());
        EXPECT_THAT(
            torch_error_of([&] { weight.grad().norm(); }),
            AllOf(StartsWith("gradient of parameter layers.1.weight: expected a read of this rank's part"),
                  HasSubstr("fsdp::parameters(engine)"), HasSubstr("fsdp::clip_grad_norm")));
      }
      run.chain.zero_grad();  // as if the module were a plain one
      EXPECT_FALSE(weight.grad().defined());
      run.step();
    });
  }
}

}  // namespace
}  // namespace fsdp::shard
