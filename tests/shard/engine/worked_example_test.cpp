// The usual worked example of FSDP, scaled down: ten equal blocks of fp32 parameters on eight ranks (the full
// size is 1.6 billion parameters a block, 30 communications of 0.8 GB and 24 GB a step and rank).

#include <gtest/gtest.h>

#include <mutex>

#include "shard/engine/engine_sizes.h"
#include "support/forwarding_communicator.h"
#include "support/layout_under_test.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

constexpr int kRanks = 8;
constexpr int64_t kBlocks = 10, kWidth = 128, kMatrices = 12;
constexpr int64_t kUnitBytes = kMatrices * kWidth * kWidth * 4;  // 196,608 parameters, divisible by 8
constexpr int64_t kShardBytes = kUnitBytes / kRanks;
constexpr int64_t kMatrixBytes = kWidth * kWidth * 4;

/// Matrices in a row.
class Block final : public nn::Stage {
 public:
  Block() {
    for (int64_t i = 0; i < kMatrices; ++i) {
      at::Tensor values = at::arange(kWidth * kWidth, at::kFloat).add_(i).sin_().mul_(0.05);
      weights_.push_back(
          register_parameter("weight" + std::to_string(i), values.view({kWidth, kWidth}).clone()));
    }
  }
  std::string type_name() const override { return "block"; }

 protected:
  at::Tensor compute(const at::Tensor& input, const nn::StageContext&) override {
    at::Tensor x = input;
    for (const at::Tensor& weight : weights_) x = x + at::linear(x, weight).tanh();
    return x;
  }

 private:
  std::vector<at::Tensor> weights_;
};

/// Blocks, and no parameters beside them.
class Blocks final : public nn::Stage {
 public:
  Blocks() {
    list_ = register_module("blocks", std::make_shared<nn::StageList>());
    for (int64_t i = 0; i < kBlocks; ++i) list_->append(std::make_shared<Block>());
  }
  std::string type_name() const override { return "blocks"; }

 protected:
  at::Tensor compute(const at::Tensor& input, const nn::StageContext& context) override {
    at::Tensor x = input;
    for (const auto& block : *list_) x = block->forward(x, context);
    return x;
  }

 private:
  std::shared_ptr<nn::StageList> list_;
};

/// Rank 0's counts in the last of several steps; every rank checks what must be equal on all.
struct Outcome {
  Traffic traffic;
  StepFormula formula;
  int64_t peak = 0;                           ///< the highest of all ranks and steps
  std::vector<int64_t> held, live;            ///< by the pool, live; after each step
  std::vector<std::vector<int64_t>> by_unit;  ///< number of collectives of each unit, and their bytes
};

/// In lockstep no collective is behind, and memory does not depend on how fast the ranks are.
Outcome train_blocks(const ShardOptions& change, bool in_lockstep = false) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks_as_threads(kRanks, [&](comm::Communicator& threaded) {
    testing::LockstepCommunicator lockstep(threaded);
    comm::Communicator& communicator = in_lockstep ? lockstep : threaded;
    Blocks model;
    ShardOptions options = change;
    options.min_num_params = kUnitBytes / 4;
    auto engine = testing::shard_under_test(model, options, testing::borrowed(communicator));
    bool first = communicator.rank() == 0;
    for (int step = 0; step < 4; ++step) {
      engine->zero_gradients();
      engine->reset_counters();
      // The input requires a gradient, as the output of an embedding does.
      at::Tensor x = at::full({2, kWidth}, 0.01 * (communicator.rank() + 1)).requires_grad_();
      model.forward(x).square().mean().backward();
      testing::sgd_on_shards(*engine, 0.1);
      std::lock_guard lock(mutex);
      outcome.peak = std::max(outcome.peak, engine->unsharded_memory().peak);
      if (!first) continue;
      outcome.held.push_back(engine->buffer_pool().held_bytes());
      outcome.live.push_back(engine->live_unsharded_bytes());
    }
    if (!first) return;
    outcome.traffic = engine->traffic();
    outcome.formula = step_formula(*engine);
    for (const auto& unit : engine->units()) {
      const Traffic& t = unit->traffic();
      outcome.by_unit.push_back({t.all_gathers, t.all_gather_bytes, t.reduce_scatters, t.reduce_scatter_bytes,
                                 t.all_reduces, t.all_reduce_bytes});
    }
  });
  return outcome;
}

/// The bytes that a rank sends in a step with ring collectives: W - 1 parts for a gather or a reduce-scatter,
/// twice that for an all-reduce.
int64_t bytes_on_the_wire(const Traffic& traffic) {
  return (traffic.all_gather_bytes + traffic.reduce_scatter_bytes) * (kRanks - 1) +
         2 * traffic.all_reduce_bytes * (kRanks - 1) / kRanks;
}

TEST(WorkedExample, TenBlocksOnEightRanksCommunicateThirtyShards) {
  ShardOptions options;
  options.reshard_last_after_forward = true;
  Outcome outcome = train_blocks(options);
  EXPECT_EQ(outcome.traffic.all_gathers + outcome.traffic.reduce_scatters + outcome.traffic.all_reduces, 30);
  EXPECT_EQ(outcome.traffic, (Traffic{.all_gathers = 20,
                                      .all_gather_bytes = 20 * kShardBytes,
                                      .reduce_scatters = 10,
                                      .reduce_scatter_bytes = 10 * kShardBytes}));
  EXPECT_EQ(outcome.traffic, outcome.formula.traffic);
  ASSERT_EQ(outcome.by_unit.size(), 11u);
  EXPECT_EQ(outcome.by_unit[0], std::vector<int64_t>(6, 0)) << "a root without parameters says nothing";
  for (size_t block = 1; block < outcome.by_unit.size(); ++block) {
    EXPECT_EQ(outcome.by_unit[block], (std::vector<int64_t>{2, 2 * kShardBytes, 1, kShardBytes, 0, 0}));
  }
}

TEST(WorkedExample, TheLastBlockStaysAndSavesOne) {
  Outcome outcome = train_blocks({});
  EXPECT_EQ(outcome.traffic, (Traffic{.all_gathers = 19,
                                      .all_gather_bytes = 19 * kShardBytes,
                                      .reduce_scatters = 10,
                                      .reduce_scatter_bytes = 10 * kShardBytes}));
  EXPECT_EQ(outcome.formula.forward_all_gathers, 10);
  EXPECT_EQ(outcome.formula.backward_all_gathers, 9);
}

TEST(WorkedExample, NeverMoreThanThreeUnitsLiveWhereTheEstimateNeedsFourAndAQuarter) {
  for (bool last : {false, true}) {
    ShardOptions options;
    options.reshard_last_after_forward = last;
    Outcome outcome = train_blocks(options);
    // Two gathered units and the input of one reduction, or one unit and two gradients.
    // The other layout gathers into a separate buffer.
    const int64_t buffers = testing::flat_is_under_test() ? 3 : 4;
    EXPECT_EQ(outcome.formula.unsharded_bytes, buffers * kUnitBytes);
    EXPECT_LE(outcome.peak, buffers * kUnitBytes);
    EXPECT_GE(outcome.peak, 2 * kUnitBytes);
    // With the gradient of one matrix, which autograd may hold before it is added.
    EXPECT_LT(outcome.peak + kMatrixBytes, outcome.formula.separate_buffers_bytes);
    EXPECT_EQ(outcome.formula.separate_buffers_bytes, 4 * kUnitBytes + 2 * kShardBytes);
  }
}

TEST(WorkedExample, MemoryIsTheSameAfterEveryStep) {
  const int64_t buffers = testing::flat_is_under_test() ? 3 : 4;
  for (bool in_lockstep : {true, false}) {
    Outcome outcome = train_blocks({}, in_lockstep);
    EXPECT_EQ(outcome.live, std::vector<int64_t>(4, 0));
    // A rank whose communication is behind may need one buffer more, but never more than there can be.
    for (size_t step = 2; step < outcome.held.size(); ++step) {
      EXPECT_LE(outcome.held[step], buffers * kUnitBytes);
    }
    if (in_lockstep) {
      EXPECT_EQ(outcome.held[3], outcome.held[2]);
    }
  }
}

TEST(WorkedExample, ReshardingMovesOneAndAHalfTimesWhatDataParallelDoes) {
  ShardOptions whole;
  whole.strategy = "no_shard";
  Traffic data_parallel = train_blocks(whole).traffic;
  EXPECT_EQ(data_parallel, (Traffic{.all_reduces = 10, .all_reduce_bytes = 10 * kUnitBytes}));
  const int64_t once = bytes_on_the_wire(data_parallel);

  ShardOptions everything;
  everything.reshard_last_after_forward = true;
  EXPECT_EQ(2 * bytes_on_the_wire(train_blocks(everything).traffic), 3 * once);
  // Less the gather of the block that stays.
  EXPECT_EQ(2 * (bytes_on_the_wire(train_blocks({}).traffic) + kShardBytes * (kRanks - 1)), 3 * once);

  ShardOptions kept;
  kept.reshard_after_forward = false;
  EXPECT_EQ(bytes_on_the_wire(train_blocks(kept).traffic), once);
  kept.reshard_after_forward = true;
  kept.strategy = "shard_grad_op";
  EXPECT_EQ(bytes_on_the_wire(train_blocks(kept).traffic), once);
}

}  // namespace
}  // namespace fsdp::shard
