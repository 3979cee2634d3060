// A model whose weights are eight times what a process keeps of them starts and trains on eight processes,
// none of which ever holds it, in the memory that the plan says; and adapters beside quantized weights do.

#include <gtest/gtest.h>

#include <cstdio>

#include "e2e/programs.h"
#include "model/kernels/block_product.h"
#include "setup/config/load.h"
#include "support/tiny_config.h"
#include "tools/plan/plan.h"

namespace fsdp::e2e {
namespace {

constexpr double kMib = 1 << 20;

/// 57 M parameters in blocks of 2.4 M, each a unit.
constexpr const char* kLargeModel = R"(
[model]
vocab_size = 64
hidden_size = 384
intermediate_size = 1536
num_hidden_layers = 24
num_attention_heads = 8
num_key_value_heads = 8
max_position_embeddings = 32
[data]
sequence_length = 32
micro_batch_size = 3
[training]
steps = 2
[fsdp]
wrap_stages = ["block"]
min_num_params = 10_000_000
[checkpoint]
save_at_end = false
)";

struct Way {
  int ranks;
  std::vector<std::string> overrides = {};
};

/// Peaks of resident memory.
struct Peaks {
  int64_t rank0 = 0;
  int64_t largest = 0;  ///< of the processes of the run
};

class DeferredInit : public ::testing::Test {
 protected:
  DeferredInit() {
    testing::write_token_file(folder_ / "train.bin", 4000, 64);
    std::ofstream(config_) << kLargeModel;
  }

  plan::Plan plan_of(const Way& way, int64_t blocks) const {
    std::vector<std::string> overrides = way.overrides;
    overrides.insert(overrides.end(),
                     {"data.train=[\"unused.bin\"]", "model.num_hidden_layers=" + std::to_string(blocks)});
    return plan::make_plan(config::load_config(config_, overrides), {.world_size = way.ranks});
  }

  Peaks peaks_of_run(const Way& way, int64_t blocks) {
    std::filesystem::path out = folder_ / ("out" + std::to_string(blocks));
    std::vector<std::string> command = {program("fsdp-launch"),
                                        "--nproc-per-node",
                                        std::to_string(way.ranks),
                                        "--",
                                        program("fsdp-train"),
                                        config_.string(),
                                        "run.output_dir=" + out.string(),
                                        "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
                                        "model.num_hidden_layers=" + std::to_string(blocks)};
    command.insert(command.end(), way.overrides.begin(), way.overrides.end());
    const auto result = testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 240});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (result.exit_code != 0) return {};
    EXPECT_EQ(testing::values_of(out / "metrics.jsonl", "loss").size(), 2u);
    std::printf("%ld blocks: %.1f s\n", static_cast<long>(blocks), result.seconds);
    const double rank0 = testing::values_of(out / "metrics.jsonl", "peak_memory_bytes").back();
    return {static_cast<int64_t>(rank0), result.peak_resident_bytes};
  }

  /// Libraries and connections, which no plan knows, are what a process of one block has beyond its plan.
  void expect_memory_of_the_plan(const Way& way) {
    constexpr int64_t kPercent = 10;
    const plan::Plan small = plan_of(way, 1), large = plan_of(way, 24);
    const int64_t one_block = peaks_of_run(way, 1).rank0;
    const auto [rank0, largest] = peaks_of_run(way, 24);
    const int64_t planned = large.memory.resident - small.memory.resident;
    std::printf(
        "MiB: weights %.0f, a process's shards %.1f; planned with one block %.0f, with 24 %.0f (+%.0f); "
        "resident peak of rank 0 with one block %.0f, with 24 %.0f (+%.0f), of the largest process %.0f\n",
        static_cast<double>(4 * large.parameters) / kMib, large.memory.shards / kMib,
        small.memory.resident / kMib, large.memory.resident / kMib, planned / kMib, one_block / kMib,
        rank0 / kMib, (rank0 - one_block) / kMib, largest / kMib);
    const int64_t expected = one_block + planned;
    EXPECT_LE(rank0, expected * (100 + kPercent) / 100);
    // Without products in bfloat16, a pass needs less than its plan: 84 % of it on an AMD EPYC.
    EXPECT_GE(rank0, expected * (100 - 2 * kPercent) / 100);
    EXPECT_LE(largest, expected * (100 + kPercent) / 100);
    EXPECT_GE(largest, rank0 * 99 / 100) << "the ranks are not among the processes";
  }

  testing::TemporaryFolder folder_;
  const std::filesystem::path config_ = folder_ / "config.toml";
};

TEST_F(DeferredInit, AModelEightTimesAProcessesPartTrainsInTheMemoryOfThePlan) {
  const plan::Plan plan = plan_of({.ranks = 8}, 24);
  EXPECT_LT(plan.memory.peak, 4 * plan.parameters)
      << "with gradients and moments less than the weights alone";
  expect_memory_of_the_plan({.ranks = 8});
}

// At the start each process quantizes one whole matrix after another.
TEST_F(DeferredInit, AdaptersBesideWeightsInFourBitsTrainInTheMemoryOfThePlan) {
  expect_memory_of_the_plan(
      {.ranks = 2,
       .overrides = {"data.micro_batch_size=12", "lora.rank=8", "lora.quantize=nf4",
                     "fsdp.param_storage=bfloat16", "mixed_precision.param_dtype=bfloat16"}});
}

}  // namespace
}  // namespace fsdp::e2e
