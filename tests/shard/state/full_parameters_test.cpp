#include "shard/state/full_parameters.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/util/error.h"
#include "support/counting_communicator.h"
#include "support/layout_under_test.h"
#include "support/readable.h"
#include "support/shard_setups.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::borrowed;
using testing::ChainStage;
using testing::CountingCommunicator;
using testing::shard_setups;

// Matrices of 9 elements and a bias of 3: uneven over 2 and 4 ranks.
constexpr int64_t kLayers = 2, kSize = 3;

ShardOptions nested() { return shard_setups().front().options; }

at::Tensor input() { return at::tensor({0.5f, -0.25f, 0.125f}); }

std::string usage_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

void contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

/// Runs the body under each setup at each world size.
void for_each_setup(
    const std::function<void(comm::Communicator&, const ShardOptions&, const std::string& where)>& body) {
  for (const auto& setup : shard_setups()) {
    for (int world : {1, 2, 3, 4}) {
      comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
        body(communicator, setup.options, concat(setup.name, ", ", world, " ranks"));
      });
    }
  }
}

void scale_parameters(nn::Stage& model) {
  at::NoGradGuard no_grad;
  for (at::Tensor parameter : model.parameters()) parameter.mul_(0.5).add_(0.25);
}

at::Tensor evaluate(nn::Stage& model) {
  at::NoGradGuard no_grad;
  return model.forward(input()).to(at::kFloat);
}

std::vector<at::Tensor> shards_of(const Engine& engine) {
  std::vector<at::Tensor> shards;
  for (const auto& unit : engine.units()) shards.push_back(unit->storage().shard().clone());
  return shards;
}

void expect_shards(const Engine& engine, const std::vector<at::Tensor>& expected, const std::string& where) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(engine.units()[i]->storage().shard(), expected[i])) << where << ", unit " << i;
  }
}

TEST(FullParameters, ShowsTheWholeMasterWeights) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    ChainStage plain(kLayers, kSize), chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    FullParameters full(*engine);
    auto expected = plain.named_parameters();
    EXPECT_EQ(chain.named_parameters().size(), expected.size());
    for (const auto& parameter : chain.named_parameters()) {
      EXPECT_EQ(parameter.value().scalar_type(), at::kFloat) << where;
      EXPECT_TRUE(at::equal(parameter.value(), expected[parameter.key()])) << where << parameter.key();
    }
  });
}

TEST(FullParameters, WritebackChangesTheNextForward) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    ChainStage plain(kLayers, kSize), chain(kLayers, kSize);
    scale_parameters(plain);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    evaluate(chain);
    {
      FullParameters full(*engine, {.writeback = true});
      scale_parameters(chain);
    }
    double tolerance = options.mixed_precision.param_dtype == "float32" ? 1e-6 : 2e-2;
    EXPECT_TRUE(at::allclose(evaluate(chain), evaluate(plain), tolerance, tolerance)) << where;
    // The master weights take every bit, and are shown again as written.
    FullParameters full(*engine);
    EXPECT_TRUE(at::equal(chain.layer(1).weight(), plain.layer(1).weight())) << where;
    EXPECT_TRUE(at::equal(chain.parameters().front(), plain.parameters().front())) << where;
  });
}

TEST(FullParameters, WithoutWritebackNothingStays) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    ChainStage chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    at::Tensor before = evaluate(chain);
    auto shards = shards_of(*engine);
    {
      FullParameters full(*engine);
      scale_parameters(chain);
    }
    expect_shards(*engine, shards, where);
    EXPECT_TRUE(at::equal(evaluate(chain), before)) << where;
  });
}

TEST(FullParameters, EachRankWritesItsOwnRange) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(4, 1);
    auto engine = testing::shard_under_test(stage, nested(), borrowed(communicator));
    {
      FullParameters full(*engine, {.writeback = true});
      at::NoGradGuard no_grad;
      stage.weight().fill_(communicator.rank() + 1.0);
    }
    FullParameters full(*engine);
    EXPECT_TRUE(at::equal(stage.weight(), at::tensor({1.0f, 1.0f, 2.0f, 2.0f}).view({1, 4})));
  });
}

// In low precision the parameters, which change their type meanwhile, have hooks and gradient accumulators.
TEST(FullParameters, TrainingGoesOnAsIfNothingHadBeen) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    auto train = [&](bool look) {
      ChainStage chain(kLayers, kSize);
      auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
      for (int step = 0; step < 3; ++step) {
        engine->zero_gradients();
        if (look) FullParameters(*engine, {.writeback = step == 1});
        chain.forward(input() * (communicator.rank() + 1.0)).to(at::kFloat).sum().backward();
        if (look) FullParameters(*engine, {.writeback = step == 2});
        testing::sgd_on_shards(*engine, 0.5);
      }
      return shards_of(*engine);
    };
    auto expected = train(false), actual = train(true);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << where;
  });
}

TEST(FullParameters, LeavesGradientsAloneReducedOrNot) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    auto gradients = [&](bool look) {
      ChainStage chain(kLayers, kSize);
      auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
      for (int micro = 0; micro < 3; ++micro) {
        engine->set_requires_gradient_sync(micro != 1);
        chain.forward(input() * (micro + 1.0)).to(at::kFloat).sum().backward();
        if (look) FullParameters full(*engine, {.writeback = true});
      }
      std::vector<at::Tensor> result;
      for (const auto& unit : engine->units()) {
        if (unit->storage().layout().numel() > 0) result.push_back(unit->storage().shard_gradient().clone());
      }
      return result;
    };
    auto expected = gradients(false), actual = gradients(true);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << where;
  });
}

TEST(FullParameters, GradientsMayBeForgottenWhileItIsOpen) {
  for (const char* reduce_dtype : {"bfloat16", "float32"}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ShardOptions options = nested();
      options.mixed_precision.param_dtype = "bfloat16";
      options.mixed_precision.reduce_dtype = reduce_dtype;
      ChainStage chain(kLayers, kSize);
      auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
      {
        NoSync no_sync(*engine);
        chain.forward(input()).sum().backward();
      }
      EXPECT_TRUE(engine->has_unreduced_gradients());
      FullParameters full(*engine);
      engine->zero_gradients();
      EXPECT_FALSE(engine->has_unreduced_gradients());
      for (const at::Tensor& parameter : chain.parameters()) EXPECT_FALSE(parameter.grad().defined());
    });
  }
}

TEST(FullParameters, GivesItsMemoryBackAndTakesNoneOfThePool) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    ChainStage chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    chain.forward(input()).sum().backward();
    int64_t held = engine->buffer_pool().held_bytes();
    FullParameters full(*engine, {.writeback = true});
    EXPECT_GE(full.bytes(), (kLayers * kSize * kSize + kSize) * 4) << where;
    EXPECT_EQ(engine->live_unsharded_bytes(), 0) << where;
    full.close();
    EXPECT_EQ(full.bytes(), 0);
    EXPECT_EQ(engine->live_unsharded_bytes(), 0) << where;
    EXPECT_EQ(engine->buffer_pool().held_bytes(), held) << where;
    for (const auto& unit : engine->units()) {
      if (unit->storage().shard_is_unsharded()) continue;
      for (const auto& parameter : unit->storage().parameters()) {
        EXPECT_FALSE(testing::is_readable(parameter.tensor)) << where << parameter.name;
        EXPECT_EQ(parameter.tensor.scalar_type(), unit->options().storage.param_dtype) << where;
      }
    }
  });
}

TEST(FullParameters, OnRank0OnlyTheOthersKeepNothing) {
  for (const char* strategy : {"full_shard", "no_shard"}) {
    comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
      ShardOptions options = nested();
      options.strategy = strategy;
      ChainStage plain(kLayers, kSize), chain(kLayers, kSize);
      auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
      at::Tensor before = evaluate(chain);
      {
        FullParameters full(*engine, {.rank0_only = true, .to_host = true});
        if (communicator.rank() == 0) {
          EXPECT_GT(full.bytes(), 0);
          EXPECT_TRUE(chain.layer(0).weight().device().is_cpu());
          EXPECT_TRUE(at::equal(chain.layer(0).weight(), plain.layer(0).weight()));
        } else {
          EXPECT_EQ(full.bytes(), 0);
          EXPECT_EQ(testing::is_readable(chain.layer(0).weight()), !engine->units()[1]->is_cut());
        }
        EXPECT_THROW(chain.forward(input()), util::Error);  // on every rank
      }
      EXPECT_TRUE(at::equal(evaluate(chain), before));
      contains(usage_error([&] { FullParameters(*engine, {.writeback = true, .rank0_only = true}); }),
               "expected writeback or rank0_only; found both");
    });
  }
}

TEST(FullParameters, ShowsTheUnitsThatThePatternsMatch) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    CountingCommunicator communicator(inner);
    ChainStage plain(kLayers, kSize), chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, nested(), borrowed(communicator));
    {
      FullParameters full(*engine, {.units = {"layers.1"}});
      EXPECT_EQ(communicator.count("all_gather"), 1);
      EXPECT_TRUE(at::equal(chain.layer(1).weight(), plain.layer(1).weight()));
      EXPECT_FALSE(testing::is_readable(chain.layer(0).weight()));
    }
    EXPECT_FALSE(testing::is_readable(chain.layer(1).weight()));
    contains(usage_error([&] { FullParameters(*engine, {.units = {"layer.1"}}); }), "\"layer.1\"");
    EXPECT_EQ(communicator.count("all_gather"), 1);
  });
}

TEST(FullParameters, IsRefusedWhileTheEngineIsInUse) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    for (bool frees_all : {false, true}) {
      ShardOptions options = nested();
      options.reshard_root_after_forward = options.reshard_last_after_forward = frees_all;
      ChainStage chain(kLayers, kSize);
      auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
      auto open = [&engine] { FullParameters full(*engine); };
      std::string in_backward;
      at::Tensor output = chain.forward(input());
      contains(usage_error(open), "a forward whose backward has not run; call backward()");
      output.register_hook([&](const at::Tensor& gradient) {
        in_backward = usage_error(open);
        return gradient;
      });
      output.sum().backward();
      contains(in_backward, "a backward pass that has not ended");
      EXPECT_EQ(usage_error(open), "no error");

      chain.layer(1).throws = true;
      EXPECT_THROW(chain.forward(input()), std::runtime_error);
      contains(usage_error(open), "a forward pass that has not ended");
      engine->reset();
      EXPECT_EQ(usage_error(open), "no error");

      chain.layer(1).throws = false;
      chain.forward(input());
      engine->reset();
      EXPECT_EQ(usage_error(open), "no error");
      chain.forward(input());
      evaluate(chain);  // the engine frees what a forward without backward has left
      EXPECT_EQ(usage_error(open), "no error");
    }
  });
}

TEST(FullParameters, RefusesASecondOneAndForwardAndBackwardWhileItIsOpen) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, nested(), borrowed(communicator));
    at::Tensor before = evaluate(chain);
    at::Tensor loss = chain.forward(input()).sum();
    loss.backward({}, /*retain_graph=*/true);
    {
      FullParameters full(*engine);
      contains(usage_error([&] { FullParameters second(*engine); }), "close it first");
      contains(usage_error([&] { chain.forward(input()); }), "forward: expected no FullParameters");
      contains(usage_error([&] { chain.layer(0).forward(input()); }), "close it first");
      EXPECT_THROW(loss.backward(), util::Error);
      EXPECT_TRUE(full.is_open());
    }
    EXPECT_TRUE(at::equal(evaluate(chain), before));
  });
}

TEST(FullParameters, AnExceptionRestoresEverythingAndWritesNothing) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    ChainStage chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    at::Tensor before = evaluate(chain);
    try {
      FullParameters full(*engine, {.writeback = true});
      scale_parameters(chain);
      throw std::runtime_error("thrown by a test");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(at::equal(evaluate(chain), before)) << where;
  });
}

TEST(FullParameters, ClosesOnce) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage plain(kLayers, kSize), chain(kLayers, kSize);
    scale_parameters(plain);
    auto engine = testing::shard_under_test(chain, nested(), borrowed(communicator));
    {
      FullParameters full(*engine, {.writeback = true});
      scale_parameters(chain);
      full.close();
      EXPECT_FALSE(full.is_open());
      EXPECT_TRUE(at::allclose(evaluate(chain), evaluate(plain)));
      for (const auto& unit : engine->units()) unit->storage().shard().zero_();
    }
    EXPECT_TRUE(at::equal(evaluate(chain), at::zeros({kSize})));
  });
}

TEST(FullParameters, WritesBackWhatReplacedAParameter) {
  for_each_setup([](comm::Communicator& communicator, const ShardOptions& options, const std::string& where) {
    ChainStage chain(kLayers, kSize);
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    at::Tensor value = at::arange(9, at::kDouble).view({3, 3});
    {
      FullParameters full(*engine, {.writeback = true});
      chain.layer(0).weight().set_data(value.t());
    }
    evaluate(chain);
    {
      FullParameters full(*engine);
      EXPECT_TRUE(at::equal(chain.layer(0).weight(), value.t().to(at::kFloat))) << where;
    }
    auto shards = shards_of(*engine);
    std::string message = usage_error([&] {
      FullParameters full(*engine, {.writeback = true});
      scale_parameters(chain);
      chain.layer(0).weight().set_data(at::ones({2, 3}));
      full.close();
    });
    contains(message, "found layers.0.weight as Float of shape [2, 3]; nothing was written back");
    expect_shards(*engine, shards, where);
    evaluate(chain);
  });
}

}  // namespace
}  // namespace fsdp::shard
