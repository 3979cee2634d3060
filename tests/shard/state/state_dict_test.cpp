#include "shard/state/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "base/util/error.h"
#include "shard/state/full_parameters.h"
#include "shard/state_dict_fixtures.h"
#include "support/counting_allocator.h"
#include "support/counting_communicator.h"
#include "support/layout_under_test.h"
#include "support/log_lines.h"
#include "support/shard_setups.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::borrowed;
using testing::by_name;
using testing::ChainStage;
using testing::CountingCommunicator;
using testing::nested_options;
using testing::refusal_of_load;
using testing::shard_setups;

std::map<std::string, at::Tensor> weights_by_name(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : module.named_parameters()) tensors[parameter.key()] = parameter.value();
  return tensors;
}

void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(actual.count(name), 1u) << where << ", " << name;
    EXPECT_EQ(actual.at(name).scalar_type(), at::kFloat) << where << ", " << name;
    EXPECT_TRUE(at::equal(actual.at(name), tensor)) << where << ", " << name;
  }
}

/// Patterns of the setups as names of a decoder have them.
ShardOptions for_decoder(ShardOptions options) {
  if (!options.replicated_parameters.empty()) options.replicated_parameters = {"*norm*", "*.0.*.q_proj.*"};
  if (!options.mixed_precision.keep_float32.empty()) options.mixed_precision.keep_float32 = {"*norm*"};
  return options;
}

nn::ModelOptions tied_options(bool tied) {
  nn::ModelOptions options = testing::tiny_options();
  options.tie_word_embeddings = tied;
  return options;
}

TEST(StateDict, FullHasTheNamesAndValuesOfTheUnshardedModel) {
  for (const auto& setup : shard_setups()) {
    for (bool tied : {false, true}) {
      auto expected = weights_by_name(*testing::make_initialized(tied_options(tied)));
      for (int world : {1, 2, 3, 4}) {
        comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
          auto model = testing::make_initialized(tied_options(tied));
          auto engine = testing::shard_under_test(*model, for_decoder(setup.options), borrowed(communicator));
          auto state = by_name(full_state_dict(*engine));
          expect_equal(state, expected, concat(setup.name, ", ", world, " ranks"));
          if (tied) {
            EXPECT_TRUE(state.at("lm_head.weight").is_same(state.at("model.embed_tokens.weight")));
          }
        });
      }
    }
  }
}

TEST(StateDict, AdaptedModulesKeepTheirNames) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    torch::nn::Sequential plain(torch::nn::Linear(4, 3), torch::nn::Linear(3, 5));
    auto expected = weights_by_name(*plain);
    for (auto& [name, tensor] : expected)
      tensor = at::arange(tensor.numel(), at::kFloat).view(tensor.sizes());
    {
      at::NoGradGuard no_grad;
      for (const auto& parameter : plain->named_parameters()) {
        at::Tensor(parameter.value()).copy_(expected.at(parameter.key()));
      }
    }
    auto adapted = std::make_shared<nn::StageAdaptor<torch::nn::SequentialImpl>>(plain.ptr());
    auto engine = testing::shard_under_test(*adapted, nested_options(), borrowed(communicator));
    expect_equal(by_name(full_state_dict(*engine)), expected, "adapted");
    for (const auto& range : sharded_state_dict(*engine)) EXPECT_EQ(expected.count(range.name), 1u);
  });
}

TEST(StateDict, FullIsMemoryOfItsOwn) {
  for (const auto& setup : shard_setups()) {
    comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
      ChainStage chain(2, 3);
      auto engine = testing::shard_under_test(chain, setup.options, borrowed(communicator));
      auto before = by_name(full_state_dict(*engine));
      for (auto& [name, tensor] : by_name(full_state_dict(*engine))) at::Tensor(tensor).zero_();
      expect_equal(by_name(full_state_dict(*engine)), before, setup.name);
    });
  }
}

TEST(StateDict, FullOnRank0OnlyGathersOnceAUnitAndLeavesTheOthersEmpty) {
  comm::run_ranks_as_threads(3, [](comm::Communicator& inner) {
    CountingCommunicator communicator(inner);
    ChainStage chain(3, 3);
    auto engine = testing::shard_under_test(chain, nested_options(), borrowed(communicator));
    FullStateDict state = full_state_dict(*engine, {.rank0_only = true, .to_host = true});
    EXPECT_EQ(state.size(), communicator.rank() == 0 ? 4u : 0u);
    EXPECT_EQ(communicator.calls().size(), 4u);
    EXPECT_EQ(communicator.count("all_gather"), 4);
  });
}

TEST(StateDict, FullTakesAtMostOneUnitMoreThanTheResult) {
  constexpr int64_t kLayers = 4, kSize = 128, kMatrix = kSize * kSize * 4;
  for (bool rank0_only : {false, true}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ChainStage chain(kLayers, kSize);
      auto engine = testing::shard_under_test(chain, nested_options(), borrowed(communicator));
      communicator.barrier({.unit = "test"});
      std::optional<testing::CountingAllocator::Scope> scope;
      if (communicator.rank() == 0) scope.emplace();
      communicator.barrier({.unit = "test"});
      FullStateDict state = full_state_dict(*engine, {.rank0_only = rank0_only});
      communicator.barrier({.unit = "test"});
      if (!scope) return;
      int64_t results = rank0_only ? 1 : 2;
      EXPECT_GE(scope->peak_bytes(), results * kLayers * kMatrix);
      // Of each rank; where a unit is not gathered in place, what was gathered as well.
      int64_t beside = (testing::flat_is_under_test() ? 2 : 4) * kMatrix;
      EXPECT_LE(scope->peak_bytes(), results * (kLayers * kMatrix) + beside + kMatrix / 4);
      scope.reset();
    });
  }
}

TEST(StateDict, IsRefusedWhileTheEngineIsInUse) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(2, 3);
    auto engine = testing::shard_under_test(chain, nested_options(), borrowed(communicator));
    FullStateDict state = full_state_dict(*engine);
    ShardedStateDict ranges = sharded_state_dict(*engine);
    LocalStateDict shards = local_state_dict(*engine);
    auto expect_refused = [&] {
      EXPECT_THROW(full_state_dict(*engine), util::Error);
      EXPECT_THROW(load_full_state_dict(*engine, state), util::Error);
      EXPECT_THROW(load_sharded_state_dict(*engine, ranges), util::Error);
      EXPECT_THROW(load_local_state_dict(*engine, shards), util::Error);
    };
    at::Tensor output = chain.forward(at::ones({3}));
    expect_refused();
    output.sum().backward();
    FullParameters full(*engine);
    expect_refused();
    full.close();
    load_local_state_dict(*engine, shards);
  });
}

TEST(StateDict, ShardedAndLocalAreViewsOfTheShardsWithoutCommunication) {
  std::mutex mutex;
  std::map<std::string, int64_t> covered;
  comm::run_ranks_as_threads(4, [&](comm::Communicator& inner) {
    CountingCommunicator communicator(inner);
    ChainStage plain(2, 3), chain(2, 3);
    auto expected = weights_by_name(plain);
    auto engine = testing::shard_under_test(chain, nested_options(), borrowed(communicator));
    auto is_view = [&engine](const at::Tensor& tensor) {
      for (const auto& unit : engine->units()) {
        if (tensor.is_alias_of(unit->storage().shard())) return true;
      }
      return false;
    };
    for (const TensorSlice& slice : sharded_state_dict(*engine)) {
      at::Tensor whole = expected.at(slice.name);
      EXPECT_EQ(slice.shape, whole.sizes().vec());
      EXPECT_TRUE(at::equal(slice.data, whole.flatten().narrow(0, slice.range.begin, slice.range.length())));
      EXPECT_TRUE(is_view(slice.data));
      std::lock_guard lock(mutex);
      covered[slice.name] += slice.data.numel();
    }
    LocalStateDict local = local_state_dict(*engine);
    ASSERT_EQ(local.size(), engine->units().size());
    for (size_t i = 0; i < local.size(); ++i) {
      EXPECT_EQ(local[i].name, engine->units()[i]->name());
      EXPECT_TRUE(is_view(local[i].tensor));
    }
    EXPECT_TRUE(communicator.calls().empty());
  });
  EXPECT_EQ(covered,
            (std::map<std::string, int64_t>{{"bias", 3}, {"layers.0.weight", 9}, {"layers.1.weight", 9}}));
}

// From every setup and world size to every other one.
TEST(StateDict, FullMovesToAnotherWorldSizeAndWrapping) {
  auto original = weights_by_name(*testing::make_initialized(tied_options(false), /*seed=*/11));
  auto setups = shard_setups();
  for (size_t i = 0; i < setups.size(); ++i) {
    FullStateDict saved;
    comm::run_ranks_as_threads(static_cast<int>(i % 4) + 1, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(tied_options(false), /*seed=*/11);
      auto engine = testing::shard_under_test(*model, for_decoder(setups[i].options), borrowed(communicator));
      FullStateDict state = full_state_dict(*engine, {.rank0_only = true});
      if (communicator.rank() == 0) saved = std::move(state);
    });
    for (size_t j = 0; j < setups.size(); ++j) {
      comm::run_ranks_as_threads(static_cast<int>(j % 4) + 1, [&](comm::Communicator& communicator) {
        auto model = testing::make_initialized(tied_options(false));
        auto engine =
            testing::shard_under_test(*model, for_decoder(setups[j].options), borrowed(communicator));
        load_full_state_dict(*engine, saved);
        expect_equal(by_name(full_state_dict(*engine)), original, setups[i].name + " to " + setups[j].name);
      });
    }
  }
}

TEST(StateDict, RangesOfAllRanksMoveToAnotherWorldSizeAndWrapping) {
  auto original = weights_by_name(*testing::make_initialized(tied_options(true), /*seed=*/11));
  for (int from : {1, 3}) {
    std::mutex mutex;
    ShardedStateDict saved;
    comm::run_ranks_as_threads(from, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(tied_options(true), /*seed=*/11);
      auto engine = testing::shard_under_test(*model, nested_options(), borrowed(communicator));
      std::lock_guard lock(mutex);
      for (TensorSlice& slice : sharded_state_dict(*engine)) {
        slice.data = slice.data.clone();
        saved.push_back(std::move(slice));
      }
    });
    for (const auto& setup : shard_setups()) {
      comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
        auto model = testing::make_initialized(tied_options(true));
        auto engine = testing::shard_under_test(*model, for_decoder(setup.options), borrowed(communicator));
        load_sharded_state_dict(*engine, saved);
        expect_equal(by_name(full_state_dict(*engine)), original, setup.name);
      });
    }
  }
}

TEST(StateDict, LocalAndShardedGoBackToWhereTheyCameFrom) {
  for (const auto& setup : shard_setups()) {
    for (int world : {1, 2, 4}) {
      comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
        ChainStage plain(2, 3), chain(2, 3);
        auto engine = testing::shard_under_test(chain, setup.options, borrowed(communicator));
        LocalStateDict local = local_state_dict(*engine);
        ShardedStateDict ranges = sharded_state_dict(*engine);
        for (NamedTensor& shard : local) shard.tensor = shard.tensor.clone();
        for (TensorSlice& slice : ranges) slice.data = slice.data.clone();
        auto forget = [&] {
          for (const auto& unit : engine->units()) unit->storage().shard().zero_();
        };
        forget();
        load_local_state_dict(*engine, local);
        expect_equal(by_name(full_state_dict(*engine)), weights_by_name(plain), setup.name + ", local");
        forget();
        load_sharded_state_dict(*engine, ranges);
        expect_equal(by_name(full_state_dict(*engine)), weights_by_name(plain), setup.name + ", sharded");
      });
    }
  }
}

TEST(StateDict, TheNextForwardUsesWhatWasLoaded) {
  for (const auto& setup : shard_setups()) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      at::NoGradGuard no_grad;
      ChainStage chain(1, 3);
      auto engine = testing::shard_under_test(chain, setup.options, borrowed(communicator));
      chain.forward(at::ones({3}));
      // Other types and strides than the model's.
      at::Tensor weight =
          at::tensor({0.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble).view({3, 3}).t();
      load_full_state_dict(*engine, {{"layers.0.weight", weight}, {"bias", at::zeros({3}, at::kBFloat16)}});
      at::Tensor expected = at::tensor({0.75f, 0.0f, 0.0f}).tanh();
      at::Tensor actual = chain.forward(at::ones({3})).to(at::kFloat);
      EXPECT_TRUE(at::allclose(actual, expected, 1e-2, 1e-6)) << setup.name;
    });
  }
}

TEST(StateDict, OneNameOfATiedParameterIsEnough) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    auto model = testing::make_initialized(tied_options(true));
    auto engine = testing::shard_under_test(*model, nested_options(), borrowed(communicator));
    for (const char* left_out : {"lm_head.weight", "model.embed_tokens.weight"}) {
      FullStateDict state = full_state_dict(*engine);
      std::erase_if(state, [&](const NamedTensor& entry) { return entry.name == left_out; });
      for (NamedTensor& entry : state) entry.tensor.add_(1);
      load_full_state_dict(*engine, state);
      auto loaded = by_name(full_state_dict(*engine));
      for (const auto& [name, tensor] : state) EXPECT_TRUE(at::equal(loaded.at(name), tensor)) << name;
    }
  });
}

TEST(StateDict, NamesEverythingThatDoesNotFitAndWritesNothing) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage plain(3, 3), chain(3, 3);
    auto engine = testing::shard_under_test(chain, nested_options(), borrowed(communicator));
    FullStateDict state = {{"layers.0.weight", at::zeros({3, 3})},
                           {"layers.1.weight", at::zeros({9})},
                           {"layers.3.weight", at::zeros({3, 3})},
                           {"head", at::zeros({3})}};
    EXPECT_EQ(refusal_of_load([&] { load_full_state_dict(*engine, state); }),
              "load_full_state_dict(): expected the parameters and buffers of the model; found missing bias, "
              "layers.2.weight; unexpected layers.3.weight, head; misshapen layers.1.weight ([9] instead of "
              "[3, 3]); pass a state dict of the same model");
    EXPECT_EQ(
        refusal_of_load([&] { load_full_state_dict(*engine, state, /*strict=*/false); }),
        "load_full_state_dict(): expected the parameters and buffers of the model; found misshapen layers.1.weight "
        "([9] instead of [3, 3]); pass a state dict of the same model");
    FullStateDict integers = {{"layers.0.weight", at::zeros({3, 3}, at::kLong)}, {"bias", {}}};
    EXPECT_NE(refusal_of_load([&] {
                load_full_state_dict(*engine, integers);
              }).find("misshapen layers.0.weight (Long), bias (no tensor)"),
              std::string::npos);
    expect_equal(by_name(full_state_dict(*engine)), weights_by_name(plain), "after errors");

    state.erase(state.begin() + 1);
    load_full_state_dict(*engine, state, /*strict=*/false);
    auto expected = weights_by_name(plain);
    expected["layers.0.weight"] = at::zeros({3, 3});
    expect_equal(by_name(full_state_dict(*engine)), expected, "what there is");
  });
}

TEST(StateDict, RangesMustCoverWhatTheRankHas) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(5, 1);  // 3 and 2 elements
    auto engine = testing::shard_under_test(stage, nested_options(), borrowed(communicator));
    auto range = [](int64_t begin, int64_t end) {
      return TensorSlice{"weight", {1, 5}, {begin, end}, at::arange(begin, end, at::kFloat)};
    };
    ShardedStateDict gap = {range(4, 5), range(0, 3)};
    std::string message = refusal_of_load([&] { load_sharded_state_dict(*engine, gap); });
    if (communicator.rank() == 0) {
      EXPECT_EQ(message, "no error");  // has elements 0, 1 and 2
    } else {
      EXPECT_NE(message.find("found missing weight; pass"), std::string::npos) << message;
    }
    load_sharded_state_dict(*engine, {range(2, 5), range(0, 4)});
    EXPECT_TRUE(at::equal(full_state_dict(*engine)[0].tensor, at::arange(5, at::kFloat).view({1, 5})));
    ShardedStateDict torn = {range(0, 5)};
    torn[0].data = at::zeros({4});
    EXPECT_NE(
        refusal_of_load([&] { load_sharded_state_dict(*engine, torn); }).find("4 elements instead of 5"),
        std::string::npos);
  });
}

TEST(StateDict, LocalErrorsNameTheUnit) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage plain(2, 3), chain(2, 3);
    auto engine = testing::shard_under_test(chain, nested_options(), borrowed(communicator));
    // A shard of a 3x3 matrix is half of its elements, or two of its rows.
    int64_t numel = testing::flat_is_under_test() ? 5 : 6;
    const LocalStateDict good = {
        {"root", at::zeros({2})}, {"layers.0", at::zeros({numel})}, {"layers.1", at::zeros({numel})}};
    auto refused = [&](LocalStateDict state, const std::string& expected) {
      std::string message = refusal_of_load([&] { load_local_state_dict(*engine, state); });
      EXPECT_NE(message.find(expected), std::string::npos) << message;
      EXPECT_NE(message.find("use load_full_state_dict() or load_sharded"), std::string::npos) << message;
    };
    LocalStateDict bad = good;
    bad[1].tensor = at::zeros({9});
    refused(bad, concat("expected a shard of ", numel,
                        " elements of unit layers.0; found 9 elements instead of ", numel));
    bad = good;
    bad.pop_back();
    refused(bad, concat("expected a shard of ", numel, " elements of unit layers.1; found none"));
    bad = good;
    bad.push_back({"layers.2", at::zeros({numel})});
    refused(bad, "units that the model has; found unit layers.2");
    bad = good;
    bad.push_back(good[0]);
    refused(bad, "one shard of unit root; found several");
    expect_equal(by_name(full_state_dict(*engine)), weights_by_name(plain), "after errors");
    load_local_state_dict(*engine, good);
    for (const auto& unit : engine->units()) EXPECT_EQ(unit->storage().shard().abs().sum().item<float>(), 0);
  });
}

}  // namespace
}  // namespace fsdp::shard
