#include "state/checkpoint/state_slices.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "comm/api/communicator.h"
#include "model/nn/hooked.h"
#include "shard/engine/fully_shard.h"
#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/optim/engine_shards.h"
#include "state/optim/optimizer_state.h"
#include "support/optimizer_over_shards.h"
#include "support/sharded_run.h"
#include "support/temporary_folder.h"
#include "support/wrapped_paths.h"

namespace fsdp::checkpoint {
namespace {

TEST(StateSlices, AreViewsOfShardsAndOptimizerState) {
  comm::run_ranks_as_threads(3, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 3);
    shard::ShardOptions options;
    options.min_num_params = 1;
    auto engine = shard::fully_shard(chain, options, testing::borrowed(communicator));
    auto optimizer = optim::make_optimizer({}, optim::flat_parameters(*engine, {}));
    auto slices = state_slices(*engine, *optimizer, SlicePurpose::kSave);
    EXPECT_EQ(slices.size(), 3u * 3);  // three parameters: weights and two states of AdamW
    std::map<std::string, const shard::TensorSlice*> by_name;
    for (const auto& slice : slices) {
      by_name[slice.name] = &slice;
      EXPECT_EQ(slice.data.numel(), slice.range.end - slice.range.begin);
    }
    const auto& weight = *by_name.at("model/layers.0.weight");
    EXPECT_EQ(weight.shape, (std::vector<int64_t>{3, 3}));
    EXPECT_EQ(weight.range.begin, communicator.rank() * 3);
    EXPECT_EQ(weight.data.data_ptr(), engine->units()[1]->storage().shard().data_ptr());
    EXPECT_EQ(by_name.count("optimizer/exp_avg_sq/layers.1.weight"), 1u);
  });
}

TEST(StateSlices, OfReplicasAreGivenOnceAndWantedByAll) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 3);
    shard::ShardOptions options;
    options.strategy = "no_shard";
    auto engine = shard::fully_shard(chain, options, testing::borrowed(communicator));
    auto optimizer = optim::make_optimizer({}, optim::flat_parameters(*engine, {}));
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kSave)) {
      int64_t numel = c10::multiply_integers(slice.shape), half = (numel + 1) / 2;
      EXPECT_EQ(slice.range.begin, communicator.rank() == 0 ? 0 : half);
      EXPECT_EQ(slice.range.end, communicator.rank() == 0 ? half : numel);
      EXPECT_EQ(slice.data.numel(), slice.range.end - slice.range.begin);
    }
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kLoad)) {
      EXPECT_EQ(slice.data.numel(), c10::multiply_integers(slice.shape));
    }
  });
}

// 25 elements of a matrix over 2 shards are 13 and 12; each of 3 replicas gives 3 to 5 of them.
TEST(StateSlices, OfHybridShardsCoverEveryElementOnceSpreadOverReplicas) {
  std::mutex mutex;
  std::map<std::string, std::vector<int>> written;
  std::vector<int64_t> of_rank(6);
  comm::run_ranks_as_threads(6, [&](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 5);
    shard::ShardOptions options;
    options.strategy = "hybrid_shard";
    options.min_num_params = 1;
    comm::Mesh mesh({.dcn = 3, .data = 2}, testing::borrowed(communicator));
    auto engine = shard::fully_shard(chain, options, mesh);
    auto optimizer = optim::make_optimizer({}, optim::flat_parameters(*engine, {}));
    std::lock_guard lock(mutex);
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kSave)) {
      auto& counts = written[slice.name];
      counts.resize(static_cast<size_t>(c10::multiply_integers(slice.shape)));
      for (int64_t i = slice.range.begin; i < slice.range.end; ++i) ++counts[static_cast<size_t>(i)];
      of_rank[static_cast<size_t>(communicator.rank())] += slice.range.end - slice.range.begin;
      const shard::Unit& unit = *engine->units()[slice.name.find("bias") == std::string::npos ? 1 : 0];
      if (slice.name == "model/layers.0.weight" && slice.range.end > slice.range.begin) {
        int64_t offset = slice.range.begin - mesh.coordinate().data * 13;
        EXPECT_EQ(slice.data.data_ptr(), unit.storage().shard().narrow(0, offset, 1).data_ptr());
      }
    }
  });
  EXPECT_EQ(written.size(), 9u);
  for (const auto& [name, counts] : written) EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
  for (int64_t elements : of_rank) EXPECT_GT(elements, 0);
}

TEST(StateSlices, OfUnitsInDifferentGroupsCoverEveryElementOnce) {
  std::mutex mutex;
  std::map<std::string, std::vector<int>> written;
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    testing::ChainStage chain(4, 3);
    const shard::EnableWrap scope;
    testing::wrap_paths(chain,
                        {{"layers.0", {.strategy = "no_shard"}}, {"layers.1", {.strategy = "hybrid_shard"}}});
    auto engine = shard::fully_shard(chain, {.min_num_params = 1},
                                     comm::Mesh({.dcn = 2, .data = 2}, testing::borrowed(communicator)));
    auto optimizer = optim::make_optimizer({}, optim::flat_parameters(*engine, {}));
    std::lock_guard lock(mutex);
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kSave)) {
      auto& counts = written[slice.name];
      counts.resize(static_cast<size_t>(c10::multiply_integers(slice.shape)));
      for (int64_t i = slice.range.begin; i < slice.range.end; ++i) ++counts[static_cast<size_t>(i)];
    }
  });
  EXPECT_EQ(written.size(), 15u);
  for (const auto& [name, counts] : written) EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
}

// Of a 6 x 4 embedding cut on its second dimension the columns have several rows: one replica gives them all.
TEST(StateSlices, OfSeveralRowsAreGivenWholeByOneReplicaOrAnother) {
  std::mutex mutex;
  std::map<std::string, std::vector<int>> written;
  std::vector<int64_t> of_rank(4);
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    testing::ChainStage chain(4, 4);
    shard::ShardOptions options;
    options.strategy = "hybrid_shard";
    options.layout = "per_parameter";
    options.dimension_policy = [](auto&&, const std::vector<int64_t>& shape) {
      return shape.size() < 2 ? 0 : 1;
    };
    options.min_num_params = 1;
    auto engine = shard::fully_shard(chain, options, comm::Mesh({.dcn = 2}, testing::borrowed(communicator)));
    auto optimizer = optim::make_optimizer({}, optim::flat_parameters(*engine, {}));
    std::lock_guard lock(mutex);
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kSave)) {
      EXPECT_EQ(slice.data.numel(), slice.numel());
      auto& counts = written[slice.name];
      counts.resize(static_cast<size_t>(c10::multiply_integers(slice.shape)));
      int64_t columns = static_cast<int64_t>(counts.size()) / slice.range.rows;
      for (int64_t row = 0; row < slice.range.rows; ++row) {
        for (int64_t i = slice.range.begin; i < slice.range.end; ++i)
          ++counts[static_cast<size_t>(row * columns + i)];
      }
      of_rank[static_cast<size_t>(communicator.rank())] += slice.numel();
      EXPECT_TRUE(slice.name != "model/layers.0.weight" || slice.range.rows == 4);
    }
  });
  for (const auto& [name, counts] : written) EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
  for (int64_t elements : of_rank) EXPECT_GT(elements, 0);
}

TEST(StateSlices, OfParametersInSeveralPartsAreLoadedByAnyOtherCut) {
  const std::vector<testing::Cut> cuts = {
      {.name = "in rows", .world_size = 3, .in_rows = true},
      {.name = "replicas in rows", .world_size = 6, .strategy = "hybrid_shard", .dcn = 3, .in_rows = true},
      {.name = "alone", .world_size = 1},
      {.name = "by dimensions", .world_size = 2, .layout = "per_parameter"}};
  for (const char* name : {"adamw", "adafactor"}) {
    optim::OptimizerOptions options;
    options.name = name;
    for (const testing::Cut& from : cuts) {
      testing::TemporaryFolder folder;
      testing::Tensors weights;
      optim::FullOptimizerState states;
      comm::run_ranks_as_threads(from.world_size, [&](comm::Communicator& communicator) {
        testing::OptimizedRank rank(from, options, communicator);
        rank.step();
        save_sharded({.root = folder.path(), .step = 1, .layout = "flat"},
                     state_slices(rank.engine(), rank.optimizer(), SlicePurpose::kSave), communicator);
        const auto whole = shard::full_state_dict(rank.engine());
        auto state = optim::full_optimizer_state(rank.engine(), rank.optimizer());
        if (communicator.rank() != 0) return;
        for (const auto& [parameter, tensor] : whole) weights[parameter] = tensor;
        states = std::move(state);
      });
      const auto saved = folder.path() / step_folder_name(1);
      for (const testing::Cut& to : cuts) {
        const std::string what = concat(name, ", ", from.name, " to ", to.name);
        comm::run_ranks_as_threads(to.world_size, [&](comm::Communicator& communicator) {
          testing::OptimizedRank rank(to, options, communicator);
          load_slices(saved, read_manifest(saved),
                      state_slices(rank.engine(), rank.optimizer(), SlicePurpose::kLoad),
                      {.refuse_unexpected = true});
          for (const auto& [parameter, tensor] : shard::full_state_dict(rank.engine())) {
            EXPECT_TRUE(at::equal(tensor, weights.at(parameter))) << what << " " << parameter;
          }
          for (auto& [parameter, state] :
               optim::full_optimizer_state(rank.engine(), rank.optimizer()).parameters) {
            for (const auto& [kind, tensor] : state.states) {
              EXPECT_TRUE(at::equal(tensor, states.parameters.at(parameter).states.at(kind)))
                  << what << " " << kind << " of " << parameter;
            }
          }
        });
      }
    }
  }
}

// Rows of the largest part are shared by the replicas; whole segments in turn would leave it to one of them.
TEST(StateSlices, OfSomeRowsAreCutByReplicas) {
  std::mutex mutex;
  std::vector<int64_t> of_rank(3);
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    testing::OptimizedRank rank({.name = "", .world_size = 3, .strategy = "no_shard"}, {}, communicator);
    for (const shard::Segment& each : rank.engine().segments()) {
      if (each.shape.size() != 2) continue;
      auto& segment = const_cast<shard::Segment&>(each);  // all rows but the first
      segment.range = {0, each.shape[1], each.shape[0], 1, each.shape[0]};
      segment.shard_offset += each.shape[1];
    }
    std::lock_guard lock(mutex);
    for (const auto& slice : state_slices(rank.engine(), rank.optimizer(), SlicePurpose::kSave)) {
      EXPECT_EQ(slice.data.numel(), slice.numel());
      if (slice.shape.size() == 2) of_rank[static_cast<size_t>(communicator.rank())] += slice.numel();
    }
  });
  const int64_t most = *std::max_element(of_rank.begin(), of_rank.end());
  EXPECT_LT(most, std::accumulate(of_rank.begin(), of_rank.end(), int64_t{0}) / 2);
}

// Through files, sharded and whole, and through copies in host memory.
TEST(StateSlices, In8BitsAreSavedInFp32AndLoadedWithTheSameCodes) {
  const optim::OptimizerOptions options{.name = "adamw", .state_dtype = optim::StateType::kInt8};
  const std::vector<testing::Cut> cuts = {{"three", 3},
                                          {"hybrid", 4, "hybrid_shard", "flat", 2},
                                          {"no_shard", 2, "no_shard"},
                                          {.name = "in_rows", .world_size = 3, .in_rows = true}};
  for (const testing::Cut& cut : cuts) {
    for (const std::string way : {"sharded", "full", "copies"}) {
      SCOPED_TRACE(concat(cut.name, " ", way));
      testing::TemporaryFolder folder;
      comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
        testing::OptimizedRank saved(cut, options, communicator, testing::wide_options()),
            loaded(cut, options, communicator, testing::wide_options());
        saved.step();
        saved.step();
        loaded.step();
        const SaveRequest request{.root = folder.path(), .step = 2, .layout = "flat"};
        HostCopies copies;
        const auto all = state_slices(saved.engine(), saved.optimizer(), SlicePurpose::kSave),
                   places = state_slices(loaded.engine(), loaded.optimizer(), SlicePurpose::kLoad);
        if (way == "copies") {
          copies.take(state_slices(saved.engine(), saved.optimizer(), SlicePurpose::kLoad));
          saved.step();
          copies.write_back(places);
          copies.write_back(state_slices(saved.engine(), saved.optimizer(), SlicePurpose::kLoad));
        } else {
          way == "full" ? save_full(request, all, communicator) : save_sharded(request, all, communicator);
          const std::filesystem::path step = folder / "step-00000002";
          load_slices(step, read_manifest(step), places);
          EXPECT_EQ(
              read_manifest(step).tensors.at("optimizer/exp_avg/model.layers.0.mlp.up_proj.weight").dtype,
              at::kFloat);
        }
        int coded = 0;
        for (const std::string& name : saved.optimizer().state_names()) {
          for (size_t i = 0; i < saved.optimizer().parameters().size(); ++i) {
            const auto expected = saved.optimizer().state_memory(name, i),
                       found = loaded.optimizer().state_memory(name, i);
            for (size_t k = 0; k < expected.size(); ++k) {
              if (!expected[k].defined()) continue;
              coded += k > 0 ? 1 : 0;
              EXPECT_TRUE(at::equal(found[k], expected[k])) << name << " of " << i << ", part " << k;
            }
          }
        }
        EXPECT_GT(coded, 0);
      });
    }
  }
}

TEST(StateSlices, OfAnotherTypeAreConvertedToAndFrom8Bits) {
  const testing::Cut cut{"two", 2};
  const auto options = [](optim::StateType type) {
    return optim::OptimizerOptions{.name = "adamw", .state_dtype = type};
  };
  for (const auto& [before, after] : {std::pair{optim::StateType::kBFloat16, optim::StateType::kInt8},
                                      std::pair{optim::StateType::kFloat32, optim::StateType::kInt8},
                                      std::pair{optim::StateType::kInt8, optim::StateType::kBFloat16}}) {
    testing::TemporaryFolder folder;
    comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
      testing::OptimizedRank saved(cut, options(before), communicator, testing::wide_options()),
          loaded(cut, options(after), communicator, testing::wide_options());
      saved.step();
      save_sharded({.root = folder.path(), .step = 1, .layout = "flat"},
                   state_slices(saved.engine(), saved.optimizer(), SlicePurpose::kSave), communicator);
      const std::filesystem::path step = folder / "step-00000001";
      load_slices(step, read_manifest(step),
                  state_slices(loaded.engine(), loaded.optimizer(), SlicePurpose::kLoad),
                  {.may_be_converted = {"optimizer/*"}});
      const auto states = optim::full_optimizer_state(saved.engine(), saved.optimizer()),
                 found = optim::full_optimizer_state(loaded.engine(), loaded.optimizer());
      double most = 0;
      for (const auto& [name, parameter] : states.parameters) {
        for (const auto& [kind, tensor] : parameter.states) {
          const at::Tensor exact = tensor.to(at::kFloat),
                           other = found.parameters.at(name).states.at(kind).to(at::kFloat);
          const double off = (other - exact).abs().max().item<double>() / exact.abs().max().item<double>();
          EXPECT_LT(off, 0.0072) << kind << " of " << name;
          most = std::max(most, off);
        }
      }
      EXPECT_GT(most, 1e-4) << "nothing was rounded";
    });
  }
}

TEST(FlatParameters, LeaveOutPaddingAndFrozenParametersAndMarkWhatDoesNotDecay) {
  comm::SingleCommunicator communicator;
  testing::ChainStage chain(3, 2);
  chain.layer(1).weight().requires_grad_(false);
  shard::ShardOptions options;
  options.min_num_params = 1000;  // everything in the root: bias (2), then three weights of 4
  auto engine = shard::fully_shard(chain, options, testing::borrowed(communicator));
  optim::OptimizerOptions optimizer;
  optimizer.no_decay = {"*bias"};
  auto parameters = optim::flat_parameters(*engine, optimizer);
  ASSERT_EQ(parameters.size(), 1u);
  ASSERT_EQ(parameters[0].ranges.size(), 3u);
  EXPECT_EQ(parameters[0].ranges[0].end, 2);
  EXPECT_FALSE(parameters[0].ranges[0].treatment.decay);
  EXPECT_EQ(parameters[0].ranges[1].begin, 2);
  EXPECT_EQ(parameters[0].ranges[1].end, 6);
  EXPECT_TRUE(parameters[0].ranges[1].treatment.decay);
  EXPECT_EQ(parameters[0].ranges[2].begin, 10);
}

TEST(StateSlices, OfMuonAreOneAverageOfMatricesAndTwoOfTheRestOnEveryRank) {
  comm::run_ranks_as_threads(3, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 3);
    shard::ShardOptions options;
    options.min_num_params = 1;
    auto engine = shard::fully_shard(chain, options, testing::borrowed(communicator));
    optim::OptimizerOptions muon;
    muon.name = "muon";
    muon.momentum = 0.95;
    muon.adamw_parameters = {"layers.1.*"};
    optim::ShardedMatrices matrices(*engine, muon);
    auto optimizer = optim::make_optimizer(muon, optim::flat_parameters(*engine, muon), &matrices);
    std::vector<std::string> names;
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kLoad)) {
      if (slice.name.starts_with("optimizer/")) names.push_back(slice.name.substr(10));
      EXPECT_EQ(slice.data.numel(), slice.range.end - slice.range.begin) << slice.name;
    }
    EXPECT_EQ(names, (std::vector<std::string>{"momentum_buffer/layers.0.weight", "exp_avg/bias",
                                               "exp_avg/layers.1.weight", "exp_avg_sq/bias",
                                               "exp_avg_sq/layers.1.weight"}));
  });
}

struct NormRun {
  torch::nn::BatchNorm1dImpl& norm;
  shard::Engine& engine;
  const optim::Optimizer& optimizer;
  comm::Communicator& communicator;
};

void run_norm(int world, const std::function<void(const NormRun&)>& body) {
  comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
    nn::Hooked<torch::nn::BatchNorm1dImpl> norm(torch::nn::BatchNormOptions(3));
    auto engine = shard::fully_shard(*norm, {}, testing::borrowed(communicator));
    auto optimizer = optim::make_optimizer({}, optim::flat_parameters(*engine, {}));
    body({*norm, *engine, *optimizer, communicator});
  });
}

TEST(StateSlices, OfBuffersAreSavedByRank0AndLoadedByAll) {
  testing::TemporaryFolder folder;
  run_norm(2, [&](const NormRun& run) {
    run.norm.running_mean.fill_(2.5 + run.communicator.rank());
    run.norm.num_batches_tracked.fill_(5);
    const SaveRequest request{.root = folder.path(), .step = 5, .layout = "flat"};
    save_sharded(request, state_slices(run.engine, run.optimizer, SlicePurpose::kSave), run.communicator);
  });
  const auto saved = folder.path() / step_folder_name(5);
  run_norm(3, [&](const NormRun& run) {
    load_slices(saved, read_manifest(saved), state_slices(run.engine, run.optimizer, SlicePurpose::kLoad),
                {.refuse_unexpected = true});
    EXPECT_TRUE(at::equal(run.norm.running_mean, at::full({3}, 2.5)));
    EXPECT_EQ(run.norm.num_batches_tracked.item<int64_t>(), 5);
  });
}

TEST(StateSlices, OfAdafactorHaveRowsAndColumnsWholeOnEveryRankAndAreSavedOnce) {
  std::mutex mutex;
  std::map<std::string, int64_t> saved;
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 4);
    shard::ShardOptions options;
    options.min_num_params = 1;
    auto engine = shard::fully_shard(chain, options, testing::borrowed(communicator));
    optim::OptimizerOptions adafactor;
    adafactor.name = "adafactor";
    optim::ShardedMatrices sums(*engine, adafactor);
    auto optimizer = optim::make_optimizer(adafactor, optim::flat_parameters(*engine, adafactor), &sums);
    std::vector<std::string> names;
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kLoad)) {
      if (!slice.name.starts_with("optimizer/")) continue;
      names.push_back(slice.name.substr(10));
      if (names.back() == "exp_avg_sq/bias") continue;
      EXPECT_EQ(slice.shape, std::vector<int64_t>{4}) << slice.name;
      EXPECT_EQ(slice.data.numel(), 4) << slice.name;
    }
    EXPECT_EQ(names,
              (std::vector<std::string>{"exp_avg_sq_row/layers.0.weight", "exp_avg_sq_row/layers.1.weight",
                                        "exp_avg_sq_col/layers.0.weight", "exp_avg_sq_col/layers.1.weight",
                                        "exp_avg_sq/bias"}));
    std::lock_guard lock(mutex);
    for (const auto& slice : state_slices(*engine, *optimizer, SlicePurpose::kSave)) {
      EXPECT_EQ(slice.data.numel(), slice.range.length()) << slice.name;
      saved[slice.name] += slice.range.length();
    }
  });
  for (const char* name : {"exp_avg_sq_row", "exp_avg_sq_col"}) {
    for (const char* layer : {"0", "1"}) {
      EXPECT_EQ(saved[concat("optimizer/", name, "/layers.", layer, ".weight")], 4);
    }
  }
}

}  // namespace
}  // namespace fsdp::checkpoint
