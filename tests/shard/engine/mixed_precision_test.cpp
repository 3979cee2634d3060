// The types in which units are computed, communicated, added and kept.

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "support/chain_run.h"
#include "support/layout_under_test.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::CountingCommunicator;
using testing::every_matrix;
using testing::RunPlan;
using testing::RunResult;

struct Types {
  at::ScalarType gathered, reduced, weight, input, gradient, shard, shard_gradient;
};

/// Of one step of a chain on two ranks.
Types types_of(const MixedPrecisionOptions& precision) {
  Types types;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ShardOptions options = every_matrix("implicit", "pre");
    options.mixed_precision = precision;
    ChainRun run(communicator, options, 2);
    Types mine;
    testing::MatrixStage& layer = run.chain.layer(1);
    layer.probe = [&](const at::Tensor& x) {
      mine.input = x.scalar_type();
      mine.weight = layer.weight().scalar_type();
    };
    layer.weight().register_hook([&](const at::Tensor& gradient) { mine.gradient = gradient.scalar_type(); });
    run.step();
    for (const CountingCommunicator::Call& call : run.calls.calls()) {
      if (call.unit != "layers.1") continue;
      if (call.op == "all_gather") mine.gathered = call.dtype;
      if (call.op == "reduce_scatter") mine.reduced = call.dtype;
    }
    const UnitStorage& storage = run.engine->units()[2]->storage();
    mine.shard = storage.shard().scalar_type();
    mine.shard_gradient = storage.shard_gradient().scalar_type();
    if (communicator.rank() == 0) types = mine;
  });
  return types;
}

TEST(MixedPrecision, EverythingIsInItsType) {
  for (const char* param : {"float32", "bfloat16", "float16"}) {
    for (const char* reduce : {"float32", "bfloat16", "float16"}) {
      for (bool keep : {false, true}) {
        bool mixed_halves = std::string(param) != "float32" && std::string(reduce) != "float32" &&
                            std::string(param) != reduce;
        if (mixed_halves) continue;  // refused: neither holds every value of the other
        MixedPrecisionOptions precision;
        precision.param_dtype = param;
        precision.reduce_dtype = reduce;
        precision.keep_low_precision_grads = keep && std::string(reduce) != "float32";
        auto type = [](const std::string& name) {
          return name == "float32" ? at::kFloat : name == "bfloat16" ? at::kBFloat16 : at::kHalf;
        };
        std::string what = concat(param, ", ", reduce, keep ? ", kept" : "");
        Types types = types_of(precision);
        EXPECT_EQ(types.gathered, type(param)) << what;
        EXPECT_EQ(types.weight, type(param)) << what;
        EXPECT_EQ(types.input, type(param)) << what;
        EXPECT_EQ(types.gradient, type(param)) << what;
        EXPECT_EQ(types.reduced, type(reduce)) << what;
        EXPECT_EQ(types.shard, at::kFloat) << what;
        EXPECT_EQ(types.shard_gradient, keep ? type(reduce) : at::kFloat) << what;
      }
    }
  }
}

TEST(MixedPrecision, KeepFloat32LeavesChosenParametersAsTheyAre) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    CountingCommunicator calls(inner);
    auto model = testing::make_initialized(testing::tiny_options());
    ShardOptions options = every_matrix("implicit", "pre");
    options.mixed_precision.param_dtype = options.mixed_precision.reduce_dtype = "bfloat16";
    options.mixed_precision.keep_float32 = {"*norm*"};
    auto engine = testing::shard_under_test(*model, options, testing::borrowed(calls));
    int norms = 0;
    for (const auto& parameter : model->named_parameters()) {
      bool is_norm = parameter.key().find("norm") != std::string::npos;
      norms += is_norm;
      EXPECT_EQ(parameter.value().scalar_type(), is_norm ? at::kFloat : at::kBFloat16) << parameter.key();
    }
    EXPECT_EQ(norms, 7);
    testing::loss_of(*model, testing::token_rows(inner.rank(), 2, 9, 17)).backward();
    int in_fp32 = 0;
    for (const CountingCommunicator::Call& call : calls.calls()) {
      if (call.unit == "execution order") continue;
      EXPECT_EQ(call.dtype, call.unit == "root.float32" ? at::kFloat : at::kBFloat16) << call.unit;
      in_fp32 += call.unit == "root.float32";
    }
    EXPECT_EQ(in_fp32, 2) << "one gather, one reduction";
  });
}

TEST(MixedPrecision, InputsAreCastUnlessToldNotTo) {
  for (bool cast : {true, false}) {
    comm::run_ranks_as_threads(2, [cast](comm::Communicator& communicator) {
      ShardOptions options = every_matrix();
      options.mixed_precision.param_dtype = "bfloat16";
      options.mixed_precision.cast_forward_inputs = cast;
      ChainRun run(communicator, options, 1);
      at::ScalarType seen{};
      run.chain.layer(0).probe = [&seen](const at::Tensor& x) { seen = x.scalar_type(); };
      if (cast) {
        run.step();
      } else {
        EXPECT_ANY_THROW(run.step()) << "fp32 inputs meet bf16 weights";
        run.engine->reset();
      }
      // fp32 + bf16 is fp32: the root's bias does not change the type of its input by itself.
      EXPECT_EQ(seen, cast ? at::kBFloat16 : at::kFloat);
      EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    });
  }
}

TEST(MixedPrecision, LowPrecisionHalvesWhatIsGathered) {
  auto peak = [](const char* dtype) {
    BufferAccount account;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
      testing::LockstepCommunicator communicator(inner);
      ShardOptions options = every_matrix("implicit", "pre");
      options.mixed_precision.param_dtype = options.mixed_precision.reduce_dtype = dtype;
      ChainRun run(communicator, options, 4);
      run.step();
      EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
      if (inner.rank() == 0) account = run.engine->unsharded_memory();
    });
    return account;
  };
  BufferAccount whole = peak("float32"), half = peak("bfloat16");
  EXPECT_GT(half.peak, 0);
  EXPECT_EQ(2 * half.peak_parameters, whole.peak_parameters);
  EXPECT_EQ(2 * half.peak_gradients, whole.peak_gradients);
  EXPECT_EQ(2 * half.peak, whole.peak);
}

TEST(MixedPrecision, BuffersOfTheModelTakeTheirOwnType) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      auto model = testing::make_initialized(testing::tiny_options());
      ShardOptions options;
      options.mixed_precision.param_dtype = "bfloat16";
      options.mixed_precision.buffer_dtype = dtype;
      auto engine = testing::shard_under_test(*model, options, testing::borrowed(communicator));
      auto buffers = model->named_buffers();
      ASSERT_FALSE(buffers.is_empty());
      for (const auto& buffer : buffers) {
        EXPECT_EQ(buffer.value().scalar_type(), std::string(dtype) == "float32" ? at::kFloat : at::kBFloat16);
      }
    }
  });
}

/// y = x * weight, so that the gradient of sum(y) for the weight is x.
class ScaleStage final : public nn::Stage {
 public:
  explicit ScaleStage(int64_t size) { weight_ = register_parameter("weight", at::ones({size})); }
  std::string type_name() const override { return "scale"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override { return x * weight_; }

 private:
  at::Tensor weight_;
};

/// The mean gradient, equal for all elements, after micro-batches in which each rank has the gradient
/// `of_rank`.
double mean_gradient(int world, const ShardOptions& options, int micro_batches,
                     const std::function<double(int rank, int micro)>& of_rank) {
  double mean = 0;
  comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
    ScaleStage stage(16);
    auto engine = testing::shard_under_test(stage, options, testing::borrowed(communicator));
    for (int micro = 0; micro < micro_batches; ++micro) {
      stage.forward(at::full({16}, of_rank(communicator.rank(), micro))).sum().backward();
    }
    at::Tensor gradient = engine->units()[0]->storage().shard_gradient().to(at::kDouble);
    EXPECT_EQ(gradient.min().item<double>(), gradient.max().item<double>());
    if (communicator.rank() == 0) mean = gradient[0].item<double>();
  });
  return mean;
}

constexpr double kSmall = 1.0 / 1024;  // is lost when added to 1 in bfloat16

TEST(MixedPrecision, Fp32ReductionKeepsWhatBf16WouldLose) {
  auto one_is_small = [](int rank, int) { return rank == 0 ? 1.0 : kSmall; };
  ShardOptions options;
  options.mixed_precision.param_dtype = "bfloat16";
  EXPECT_EQ(mean_gradient(2, options, 1, one_is_small), (1 + kSmall) / 2);
  options.mixed_precision.reduce_dtype = "bfloat16";
  EXPECT_EQ(mean_gradient(2, options, 1, one_is_small), 0.5);
}

TEST(MixedPrecision, MicroBatchesAreAddedInFp32OnTheShards) {
  auto later_are_small = [](int, int micro) { return micro == 0 ? 1.0 : kSmall; };
  ShardOptions options;
  options.mixed_precision.param_dtype = options.mixed_precision.reduce_dtype = "bfloat16";
  EXPECT_EQ(mean_gradient(2, options, 4, later_are_small), 1 + 3 * kSmall);
  options.mixed_precision.keep_low_precision_grads = true;
  EXPECT_EQ(mean_gradient(2, options, 4, later_are_small), 1);
}

TEST(GradientPredivide, KeepsAFloat16SumInRange) {
  auto large = [](int, int) { return 15'000.0; };  // eight of them exceed float16's 65504
  ShardOptions options;
  options.mixed_precision.reduce_dtype = "float16";
  EXPECT_EQ(mean_gradient(8, options, 1, large), 15'000) << "by default";
  options.gradient_predivide_factor = 8;
  EXPECT_EQ(mean_gradient(8, options, 1, large), 15'000);
  options.gradient_predivide_factor = 1;
  EXPECT_TRUE(std::isinf(mean_gradient(8, options, 1, large))) << "all division after the sum";
}

TEST(GradientPredivide, ChangesResultsByRoundingOnly) {
  RunPlan plan;
  RunResult expected = train_sharded(3, plan);
  for (double factor : {0.5, 3.0, 7.0}) {
    plan.shard.gradient_predivide_factor = factor;
    expect_close_runs(train_sharded(3, plan), expected, concat("factor ", factor));
  }
}

TEST(MixedPrecision, TrainsCloseToFp32InEveryStrategyAndWorld) {
  for (const char* architecture : {"llama", "gpt2"}) {
    RunPlan plan;
    plan.model = testing::tiny_options(architecture);
    plan.shard.min_num_params = 400;
    plan.learning_rate = 0.1;
    plan.steps = 4;
    RunResult expected = train_unsharded(plan);
    plan.shard.mixed_precision.param_dtype = "bfloat16";
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
      plan.shard.strategy = strategy;
      for (int world : {1, 2, 3}) {
        for (bool offload : {false, true}) {
          plan.shard.cpu_offload = offload;
          RunResult run = train_sharded(world, plan);
          for (size_t i = 0; i < run.losses.size(); ++i) {
            EXPECT_NEAR(run.losses[i], expected.losses[i], 0.01 * expected.losses[i])
                << architecture << ", " << strategy << ", " << world << " ranks, offload " << offload;
          }
        }
      }
    }
  }
}

TEST(MixedPrecision, RecomputationChangesNoBit) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    RunPlan plan;
    plan.shard.min_num_params = 400;
    plan.shard.mixed_precision.param_dtype = dtype;
    plan.shard.mixed_precision.keep_float32 = {"*norm*"};
    RunResult expected = train_sharded(2, plan);
    plan.recompute = {"block"};
    expect_identical_runs(train_sharded(2, plan), expected, dtype);
  }
}

// An uneven unit: 3x3 weights, of which some ranks have none.
TEST(MixedPrecision, MoreRanksThanElementsTrainAlike) {
  auto weights_after = [](int world, const char* dtype) {
    std::vector<at::Tensor> weights;
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      testing::ChainStage chain(2, 3);
      ShardOptions options = every_matrix("implicit", "pre");
      options.mixed_precision.param_dtype = dtype;
      auto engine = testing::shard_under_test(chain, options, testing::borrowed(communicator));
      RunPlan plan;
      plan.optimizer = optim::OptimizerOptions{};
      auto optimizer = optimizer_over(*engine, plan);
      for (int step = 0; step < 3; ++step) {
        engine->zero_gradients();
        chain.forward(at::full({2, 3}, 0.5)).sum().backward();
        std::vector<at::Tensor> gradients;
        for (const auto& unit : engine->units()) gradients.push_back(unit->storage().shard_gradient());
        optimizer->step(gradients, 0.01);
      }
      for (auto& [name, weight] : full_state_dict(*engine, {.rank0_only = true})) weights.push_back(weight);
    });
    return weights;
  };
  for (const char* dtype : {"float32", "bfloat16"}) {
    auto expected = weights_after(1, dtype);
    for (int world : {2, 4, 5, 8}) {
      auto weights = weights_after(world, dtype);
      ASSERT_EQ(weights.size(), expected.size());
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(at::allclose(weights[i], expected[i], 1e-5, 1e-6)) << dtype << ", " << world << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::shard
