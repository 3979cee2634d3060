#include "state/optim/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "base/util/error.h"
#include "support/autocast_region.h"
#include "support/counting_allocator.h"
#include "support/counting_communicator.h"
#include "support/log_lines.h"
#include "support/optimizer_over_shards.h"

namespace fsdp::optim::states {
namespace {

using shard::FullStateDict;
using testing::Cut;
using ::testing::HasSubstr;
using testing::OptimizedRank;

const std::vector<Cut> kCuts = {
    {"alone", 1},
    {"two_ranks", 2},
    {.name = "three_ranks_in_one_unit", .world_size = 3, .min_num_params = 1'000'000},
    {"per_parameter", 3, "full_shard", "per_parameter"},
    {"zero2", 4, "shard_grad_op"},
    {"no_shard", 2, "no_shard"},
    {"hybrid", 4, "hybrid_shard", "flat", 2},
    {"hybrid_per_parameter", 4, "hybrid_shard", "per_parameter", 2},
    {.name = "in_rows", .world_size = 3, .in_rows = true}};

/// What rank 0 has gathered of a run.
struct Saved {
  FullStateDict weights;
  FullOptimizerState state;
};

Saved saved_by(OptimizedRank& rank) {
  return {shard::full_state_dict(rank.engine(), {.rank0_only = true}),
          full_optimizer_state(rank.engine(), rank.optimizer(), {.rank0_only = true})};
}

/// The result of rank 0.
Saved run(const Cut& cut, const OptimizerOptions& options, const std::function<void(OptimizedRank&)>& body) {
  Saved saved;
  comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
    OptimizedRank rank(cut, options, communicator);
    body(rank);
    Saved mine = saved_by(rank);
    if (communicator.rank() == 0) saved = std::move(mine);
  });
  return saved;
}

void take_steps(OptimizedRank& rank, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) rank.step();
}

void expect_same_state(const FullOptimizerState& found, const FullOptimizerState& expected,
                       const std::string& what) {
  EXPECT_EQ(found.step_count, expected.step_count) << what;
  ASSERT_EQ(found.parameters.size(), expected.parameters.size()) << what;
  for (const auto& [name, parameter] : expected.parameters) {
    ASSERT_TRUE(found.parameters.contains(name)) << what << " " << name;
    const ParameterState& other = found.parameters.at(name);
    EXPECT_EQ(other.step_count, parameter.step_count) << what << " " << name;
    ASSERT_EQ(other.states.size(), parameter.states.size()) << what << " " << name;
    for (const auto& [kind, tensor] : parameter.states) {
      EXPECT_TRUE(at::equal(other.states.at(kind), tensor)) << what << " " << kind << " of " << name;
    }
  }
}

void expect_weights_within(double most, const FullStateDict& found, const FullStateDict& expected,
                           const std::string& what) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : found) by_name[name] = tensor;
  for (const auto& [name, tensor] : expected) {
    EXPECT_LE((by_name.at(name) - tensor).abs().max().item<double>(), most) << what << " " << name;
  }
}

struct Setting {
  std::string title;
  OptimizerOptions options;
  bool by_tensor = false;  ///< sums over tensors, whose last bits depend on the cuts
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.title; }

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const char* name :
       {"adamw", "adam", "adamax", "adagrad", "adadelta", "sgd", "lion", "lamb", "adafactor", "muon"}) {
    const std::string title = name;
    all.push_back(
        {.title = title, .options = {.name = name}, .by_tensor = title == "lamb" || title == "adafactor"});
    all.back().options.no_decay = {"*norm*"};
    if (title == "sgd" || title == "muon") all.back().options.momentum = 0.9;
  }
  for (const char* name : {"adamw", "lion", "adadelta", "muon"}) {
    OptimizerOptions options{.name = name, .state_dtype = StateType::kBFloat16, .rounding_seed = 17};
    options.no_decay = {"*norm*"};
    if (options.name == "muon") options.momentum = 0.9;
    all.push_back({.title = options.name + "_in_bfloat16", .options = options});
  }
  all.push_back({.title = "sgd_without_states", .options = {.name = "sgd"}});
  all.push_back({.title = "adamw_with_average", .options = {.name = "adamw", .ema_decay = 0.9}});
  all.push_back(
      {.title = "adafactor_with_beta1", .options = {.name = "adafactor", .beta1 = 0.9}, .by_tensor = true});
  return all;
}

class OptimizerStates : public ::testing::TestWithParam<Setting> {};

// From each way of cutting the model to the next and, from rank 0 alone, to the one after that.
TEST_P(OptimizerStates, MoveToAnyOtherWorldSizeAndTrainOnBitForBit) {
  const Setting& setting = GetParam();
  for (size_t i = 0; i < kCuts.size(); ++i) {
    const Saved early = run(kCuts[i], setting.options, [](OptimizedRank& rank) { take_steps(rank, 2); });
    const Saved late = run(kCuts[i], setting.options, [](OptimizedRank& rank) { take_steps(rank, 4); });
    const size_t states = state_kinds(setting.options).size();
    EXPECT_GE(early.state.parameters.at("model.norm.weight").states.size(), states == 0 ? 0 : 1);
    for (size_t j : {i, (i + 1) % kCuts.size(), (i + 2) % kCuts.size()}) {
      const std::string what = concat(kCuts[i].name, " to ", kCuts[j].name);
      const bool scatters = j == (i + 2) % kCuts.size();
      const auto load = [&](OptimizedRank& rank) {
        shard::load_full_state_dict(rank.engine(), early.weights);
        if (scatters) {
          const bool first = rank.engine().communicator().rank() == 0;
          scatter_full_optimizer_state(rank.engine(), rank.optimizer(),
                                       first ? early.state : FullOptimizerState());
        } else {
          load_full_optimizer_state(rank.engine(), rank.optimizer(), early.state);
        }
      };
      expect_same_state(run(kCuts[j], setting.options, load).state, early.state, what);
      const Saved continued = run(kCuts[j], setting.options, [&](OptimizedRank& rank) {
        load(rank);
        take_steps(rank, 2);
      });
      expect_weights_within(setting.by_tensor && i != j ? 1e-6 : 0, continued.weights, late.weights, what);
    }
  }
}

TEST_P(OptimizerStates, OfTheRangesOfAllRanksMoveToAnotherWorldSize) {
  const Setting& setting = GetParam();
  std::mutex mutex;
  ShardedOptimizerState ranges;
  const Saved early = run(kCuts[3], setting.options, [&](OptimizedRank& rank) {
    take_steps(rank, 2);
    ShardedOptimizerState mine = sharded_optimizer_state(rank.engine(), rank.optimizer());
    std::lock_guard lock(mutex);
    ranges.step_count = mine.step_count;
    ranges.parameter_step_counts = mine.parameter_step_counts;
    for (shard::TensorSlice& slice : mine.slices) {
      slice.data = slice.data.clone();
      ranges.slices.push_back(std::move(slice));
    }
  });
  for (const Cut& cut : {kCuts[0], kCuts[3], kCuts[4], kCuts[6]}) {
    const Saved loaded = run(cut, setting.options, [&](OptimizedRank& rank) {
      load_sharded_optimizer_state(rank.engine(), rank.optimizer(), ranges);
    });
    expect_same_state(loaded.state, early.state, cut.name);
  }
}

// Not a product of muon's in 16 bits either.
TEST_P(OptimizerStates, AreTheSameOfStepsInARegionOfAutocast) {
  const Setting& setting = GetParam();
  const Saved expected = run(kCuts[1], setting.options, [](OptimizedRank& rank) { take_steps(rank, 2); });
  const Saved found = run(kCuts[1], setting.options, [](OptimizedRank& rank) {
    const testing::AutocastRegion region;
    take_steps(rank, 2);
  });
  expect_same_state(found.state, expected.state, setting.title);
  expect_weights_within(0, found.weights, expected.weights, setting.title);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerStates, ::testing::ValuesIn(settings()),
                         [](const auto& info) { return info.param.title; });

// Blocks that no cut divides keep their codes. Others are encoded anew.
TEST(OptimizerStatesInInt8, MoveToTheSameCutExactlyAndToOthersWithinACode) {
  OptimizerOptions options{.name = "adamw", .state_dtype = StateType::kInt8};
  const auto run_wide = [&](const Cut& cut, const std::function<void(OptimizedRank&)>& body) {
    Saved saved;
    comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
      OptimizedRank rank(cut, options, communicator, testing::wide_options());
      body(rank);
      Saved mine = saved_by(rank);
      if (communicator.rank() == 0) saved = std::move(mine);
    });
    return saved;
  };
  const std::vector<Cut> cuts = {{"four", 4},
                                 {"three", 3},
                                 {"seven", 7},
                                 {"alone", 1},
                                 {"per_parameter", 3, "full_shard", "per_parameter"},
                                 kCuts.back()};
  for (size_t i = 0; i < cuts.size(); ++i) {
    const Saved early = run_wide(cuts[i], [](OptimizedRank& rank) { take_steps(rank, 2); });
    const Saved late = run_wide(cuts[i], [](OptimizedRank& rank) { take_steps(rank, 3); });
    const auto load = [&](OptimizedRank& rank) {
      shard::load_full_state_dict(rank.engine(), early.weights);
      load_full_optimizer_state(rank.engine(), rank.optimizer(), early.state);
    };
    expect_same_state(run_wide(cuts[i], load).state, early.state, cuts[i].name);
    const Saved continued = run_wide(cuts[i], [&](OptimizedRank& rank) {
      load(rank);
      take_steps(rank, 1);
    });
    expect_same_state(continued.state, late.state, cuts[i].name);
    expect_weights_within(0, continued.weights, late.weights, cuts[i].name);
    const Cut& next = cuts[(i + 1) % cuts.size()];
    const Saved moved = run_wide(next, [&](OptimizedRank& rank) {
      const bool first = rank.engine().communicator().rank() == 0;
      scatter_full_optimizer_state(rank.engine(), rank.optimizer(),
                                   first ? early.state : FullOptimizerState());
    });
    int64_t changed = 0, all = 0;
    for (const auto& [name, parameter] : early.state.parameters) {
      for (const auto& [kind, expected] : parameter.states) {
        const at::Tensor off = (moved.state.parameters.at(name).states.at(kind) - expected).abs();
        // Half of the largest distance between codes.
        EXPECT_LT(off.max().item<float>(), 0.0071F * expected.abs().max().item<float>())
            << kind << " of " << name;
        changed += off.gt(0).sum().item<int64_t>();
        all += off.numel();
      }
    }
    EXPECT_LT(changed, all / 4) << cuts[i].name << " to " << next.name;
  }
}

void run_adamw(int world, const std::function<void(OptimizedRank&, comm::Communicator&)>& body,
               const std::vector<std::string>& frozen = {}, bool tied = false) {
  comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
    nn::ModelOptions shape = testing::tiny_options();
    shape.tie_word_embeddings = tied;
    OptimizedRank rank({"cut", world}, {}, communicator, shape, frozen);
    body(rank, communicator);
  });
}

void expect_whole_in_separate_memory(int world) {
  run_adamw(world, [](OptimizedRank& rank, comm::Communicator& communicator) {
    rank.step();
    const FullOptimizerState all = full_optimizer_state(rank.engine(), rank.optimizer());
    const at::Tensor& state = all.parameters.at("model.norm.weight").states.at("exp_avg");
    EXPECT_EQ(state.sizes(), at::IntArrayRef({12}));
    state.zero_();
    const FullOptimizerState first =
        full_optimizer_state(rank.engine(), rank.optimizer(), {.rank0_only = true, .to_host = true});
    EXPECT_EQ(first.parameters.empty(), communicator.rank() != 0);
    if (communicator.rank() != 0) return;
    EXPECT_GT(first.parameters.at("model.norm.weight").states.at("exp_avg").abs().max().item<double>(), 0);
    EXPECT_EQ(first.parameters.size(), all.parameters.size());
  });
}

TEST(OptimizerState, IsWholeOnAllRanksOrOnRank0InSeparateMemory) {
  for (int world : {1, 3}) expect_whole_in_separate_memory(world);
}

TEST(OptimizerState, LeavesOutFrozenParametersAndNamesTiedOnesOnce) {
  run_adamw(
      2,
      [](OptimizedRank& rank, comm::Communicator&) {
        rank.step();
        FullOptimizerState state = full_optimizer_state(rank.engine(), rank.optimizer());
        EXPECT_FALSE(state.parameters.contains("model.norm.weight"));
        EXPECT_FALSE(state.parameters.contains("lm_head.weight"));
        auto tied = state.parameters.extract("model.embed_tokens.weight");
        ASSERT_TRUE(tied);
        tied.key() = "lm_head.weight";
        tied.mapped().states.at("exp_avg").fill_(0.25);
        state.parameters.insert(std::move(tied));
        load_full_optimizer_state(rank.engine(), rank.optimizer(), state);
        const FullOptimizerState loaded = full_optimizer_state(rank.engine(), rank.optimizer());
        EXPECT_TRUE(loaded.parameters.at("model.embed_tokens.weight")
                        .states.at("exp_avg")
                        .eq(0.25)
                        .all()
                        .item<bool>());
        scatter_full_optimizer_state(rank.engine(), rank.optimizer(), state);
      },
      {"model.norm.weight"}, /*tied=*/true);
}

constexpr int64_t kUnit = 64 * 64 * 4;  ///< bytes of the largest unit's parameters below, about

/// Peak of the bytes of all ranks together.
int64_t peak_of(const std::function<void(OptimizedRank&, bool first)>& body) {
  int64_t peak = 0;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    nn::ModelOptions shape = testing::tiny_options();
    shape.vocab_size = shape.hidden_size = 64;
    shape.intermediate_size = 64;
    OptimizedRank rank({"cut", 2}, {}, communicator, shape);
    const bool first = communicator.rank() == 0;
    communicator.barrier({.unit = "test"});
    std::optional<testing::CountingAllocator::Scope> scope;
    if (first) scope.emplace();
    communicator.barrier({.unit = "test"});
    body(rank, first);
    communicator.barrier({.unit = "test"});
    if (scope) peak = scope->peak_bytes();
    scope.reset();
  });
  return peak;
}

TEST(OptimizerState, TakesAtMostOneUnitMoreThanTheResult) {
  int64_t result = 0, largest_unit = 0;
  const int64_t gathering = peak_of([&](OptimizedRank& rank, bool first) {
    const FullOptimizerState state =
        full_optimizer_state(rank.engine(), rank.optimizer(), {.rank0_only = true});
    if (!first) return;
    for (const auto& [name, parameter] : state.parameters) {
      for (const auto& [kind, tensor] : parameter.states) result += static_cast<int64_t>(tensor.nbytes());
    }
    for (const auto& unit : rank.engine().units()) {
      largest_unit = std::max(largest_unit, unit->storage().layout().gathered_numel() * 4);
    }
  });
  EXPECT_GT(result, 8 * largest_unit) << "or the bound says nothing";
  EXPECT_GE(gathering, result);
  EXPECT_LE(gathering, result + 2 * largest_unit + kUnit / 4) << "a unit of each of two ranks";
  EXPECT_GT(largest_unit, kUnit);
}

TEST(OptimizerState, IsScatteredAUnitAtATime) {
  FullOptimizerState state;
  int64_t largest_unit = 0, whole = 0;
  peak_of([&](OptimizedRank& rank, bool first) {
    rank.step();
    FullOptimizerState all = full_optimizer_state(rank.engine(), rank.optimizer(), {.rank0_only = true});
    if (!first) return;
    state = std::move(all);
    for (const auto& unit : rank.engine().units()) {
      largest_unit = std::max(largest_unit, unit->storage().layout().gathered_numel() * 4);
      whole += unit->storage().layout().gathered_numel() * 4;
    }
  });
  const int64_t peak = peak_of([&](OptimizedRank& rank, bool first) {
    scatter_full_optimizer_state(rank.engine(), rank.optimizer(), first ? state : FullOptimizerState());
  });
  EXPECT_GE(peak, largest_unit);
  EXPECT_LE(peak, 2 * largest_unit + kUnit / 4) << "a unit of each of two ranks";
  EXPECT_GT(whole, 4 * largest_unit);
}

TEST(OptimizerState, IsGatheredOnceForEachStateOfAUnit) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    testing::CountingCommunicator communicator(inner);
    OptimizedRank rank({"cut", 2}, {}, communicator);
    sharded_optimizer_state(rank.engine(), rank.optimizer());
    EXPECT_TRUE(communicator.calls().empty());
    full_optimizer_state(rank.engine(), rank.optimizer(), {.rank0_only = true});
    const auto units = static_cast<int64_t>(rank.engine().units().size());
    EXPECT_GT(units, 3);
    EXPECT_EQ(communicator.count("all_gather"), 2 * units);
    EXPECT_EQ(static_cast<int64_t>(communicator.calls().size()), 2 * units);
  });
}

TEST(OptimizerState, KeepsTheStepCountsOfUnitsThatHadNoGradient) {
  FullOptimizerState state;
  const auto count_of = [](const FullOptimizerState& of, const char* name) {
    return of.parameters.at(name).step_count;
  };
  run_adamw(2, [&](OptimizedRank& rank, comm::Communicator& communicator) {
    rank.step({"*layers.1*"});
    rank.step();
    FullOptimizerState all = full_optimizer_state(rank.engine(), rank.optimizer());
    EXPECT_EQ(all.step_count, 2);
    EXPECT_EQ(count_of(all, "model.layers.0.mlp.up_proj.weight"), 2);
    EXPECT_EQ(count_of(all, "model.layers.1.mlp.up_proj.weight"), 1);
    if (communicator.rank() == 0) state = std::move(all);
  });
  run_adamw(3, [&](OptimizedRank& rank, comm::Communicator&) {
    scatter_full_optimizer_state(rank.engine(), rank.optimizer(), state);
    expect_same_state(full_optimizer_state(rank.engine(), rank.optimizer()), state, "other ranks");
  });
  const std::string log = testing::log_lines([&] {
    run({.name = "one_unit", .world_size = 1, .min_num_params = 1'000'000}, {}, [&](OptimizedRank& rank) {
      load_full_optimizer_state(rank.engine(), rank.optimizer(), state);
      EXPECT_EQ(rank.optimizer().parameter_step_count(0), 2);
    });
  });
  EXPECT_THAT(log, HasSubstr("have had 1 to 2 optimizer steps; as one unit they continue with 2"));
}

std::string refusal(ErrorKind kind, const std::function<void()>& load) {
  try {
    load();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "no error";
}

TEST(OptimizerState, NamesEverythingThatDoesNotFitAndWritesNothing) {
  run_adamw(2, [](OptimizedRank& rank, comm::Communicator& communicator) {
    rank.step();
    const FullOptimizerState before = full_optimizer_state(rank.engine(), rank.optimizer());
    FullOptimizerState state = full_optimizer_state(rank.engine(), rank.optimizer());
    for (auto& [name, parameter] : state.parameters) {
      for (auto& [kind, tensor] : parameter.states) tensor.fill_(7);
    }
    state.parameters.at("model.norm.weight").states.erase("exp_avg");
    state.parameters.at("model.norm.weight").states["momentum_buffer"] = at::zeros({12});
    state.parameters.at("lm_head.weight").states["exp_avg_sq"] = at::zeros({12, 17});
    state.parameters.at("lm_head.weight").step_count = 5;
    state.parameters["extra"].step_count = 1;
    auto gone = state.parameters.extract("model.layers.0.input_layernorm.weight");
    const std::string refused = refusal(
        ErrorKind::kCheckpoint, [&] { load_full_optimizer_state(rank.engine(), rank.optimizer(), state); });
    for (
        const char* part :
        {"load_full_optimizer_state(): expected the states of the optimizer; found missing exp_avg/model",
         "exp_avg/model.layers.0.input_layernorm.weight", "exp_avg/model.norm.weight",
         "the step count of model.layers.0.input_layernorm.weight; unexpected momentum_buffer/model.norm.weight, "
         "the step count of extra; misshapen exp_avg_sq/lm_head.weight ([12, 17] instead of [17, 12]), the step "
         "count of lm_head.weight (5 of 1); pass the state of the same optimizer over the same model"}) {
      EXPECT_THAT(refused, HasSubstr(part));
    }
    // Rank 0 alone sees the faults, and all ranks hear of them.
    const bool first = communicator.rank() == 0;
    EXPECT_THAT(refusal(ErrorKind::kCheckpoint,
                        [&] {
                          scatter_full_optimizer_state(rank.engine(), rank.optimizer(),
                                                       first ? state : FullOptimizerState());
                        }),
                HasSubstr("misshapen exp_avg_sq/lm_head.weight"));
    EXPECT_THAT(
        refusal(ErrorKind::kCheckpoint,
                [&] { load_sharded_optimizer_state(rank.engine(), rank.optimizer(), {}); }),
        HasSubstr("load_sharded_optimizer_state(): expected the states of the optimizer; found missing"));
    expect_same_state(full_optimizer_state(rank.engine(), rank.optimizer()), before, "after the refusals");
  });
}

TEST(OptimizerState, IsRefusedWhileTheEngineIsInUse) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 3);
    auto engine = shard::fully_shard(chain, {.min_num_params = 1}, testing::borrowed(communicator));
    auto optimizer = make_optimizer({}, flat_parameters(*engine, {}));
    const FullOptimizerState state = full_optimizer_state(*engine, *optimizer);
    const at::Tensor output = chain.forward(at::ones({3}));
    const auto refused = [&](const std::function<void()>& call) {
      EXPECT_THAT(refusal(ErrorKind::kUsage, call), HasSubstr("expected an engine between steps"));
    };
    refused([&] { full_optimizer_state(*engine, *optimizer); });
    refused([&] { load_full_optimizer_state(*engine, *optimizer, state); });
    refused([&] { scatter_full_optimizer_state(*engine, *optimizer, state); });
    refused([&] {
      load_sharded_optimizer_state(*engine, *optimizer, sharded_optimizer_state(*engine, *optimizer));
    });
    output.sum().backward();
    load_full_optimizer_state(*engine, *optimizer, state);
  });
}

}  // namespace
}  // namespace fsdp::optim::states
