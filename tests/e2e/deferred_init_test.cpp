// A model whose weights are eight times what a process keeps of them starts and trains on eight processes,
// none of which ever holds it.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>

#include "e2e/programs.h"
#include "nn/decoder.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

constexpr int kRanks = 8;

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
sequence_length = 8
micro_batch_size = 1
[training]
steps = 2
[fsdp]
wrap_stages = ["block"]
min_num_params = 10_000_000
[checkpoint]
save_at_end = false
)";

int64_t weight_bytes(int64_t blocks) {
  nn::ModelOptions options;
  options.vocab_size = 64;
  options.hidden_size = 384;
  options.intermediate_size = 1536;
  options.num_hidden_layers = blocks;
  return 4 * nn::count_parameters(*nn::make_decoder(options, at::kMeta));
}

/// Of the processes that this one has waited for, and of theirs, the largest.
int64_t largest_process_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

class DeferredInit : public ::testing::Test {
 protected:
  DeferredInit() {
    testing::write_token_file(folder_ / "train.bin", 4000, 64);
    std::ofstream(folder_ / "config.toml") << kLargeModel;
  }

  /// Peak resident memory of rank 0.
  int64_t peak_of_run(int64_t blocks) {
    std::filesystem::path out = folder_ / ("out" + std::to_string(blocks));
    // malloc keeps blocks of up to 32 MiB that were freed, ever more of them; this makes it give them back,
    // so that resident is what is in use.
    auto result = testing::run(
        {program("fsdp-launch"), "--nproc-per-node", std::to_string(kRanks), "--", program("fsdp-train"),
         (folder_ / "config.toml").string(), "run.output_dir=" + out.string(),
         "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
         "model.num_hidden_layers=" + std::to_string(blocks)},
        {.env = {{"OMP_NUM_THREADS", "1"}, {"MALLOC_MMAP_THRESHOLD_", "1000000"}}, .timeout_seconds = 240});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (result.exit_code != 0) return 0;
    EXPECT_EQ(testing::values_of(out / "metrics.jsonl", "loss").size(), 2u);
    std::printf("%ld blocks: %.1f s\n", static_cast<long>(blocks), result.seconds);
    return static_cast<int64_t>(testing::values_of(out / "metrics.jsonl", "peak_memory_bytes").back());
  }

  testing::TemporaryFolder folder_;
};

TEST_F(DeferredInit, AModelEightTimesAProcessesPartStartsAndTrains) {
  constexpr double kMib = 1 << 20;
  // Libraries, connections, and the units that are in use at one time.
  const int64_t one_block = peak_of_run(1);
  const int64_t before = largest_process_bytes();
  const int64_t rank0 = peak_of_run(24);
  const int64_t largest = largest_process_bytes();
  const int64_t unit = weight_bytes(2) - weight_bytes(1), more = weight_bytes(24) - weight_bytes(1);
  // Each further block costs a process its eighth of the weights, their gradients and two moments; where
  // there are more blocks than one, the next is gathered and the last one's gradients are reduced beside one
  // in use.
  // A tenth for what else a process needs for more blocks.
  const int64_t allowed = (4 * more / kRanks + 2 * unit) * 11 / 10;
  std::printf(
      "MiB: weights %.0f, of them a process's %.1f; a unit %.1f; peak of rank 0 with one block %.0f, with 24 "
      "%.0f (+%.0f), of the largest process %.0f (+%.0f); allowed +%.0f\n",
      weight_bytes(24) / kMib, weight_bytes(24) / kMib / kRanks, unit / kMib, one_block / kMib, rank0 / kMib,
      (rank0 - one_block) / kMib, largest / kMib, (largest - one_block) / kMib, allowed / kMib);
  EXPECT_LE(rank0, one_block + allowed);
  // Otherwise an earlier process was larger than all of these.
  if (largest > before) {
    EXPECT_LE(largest, one_block + allowed);
  }
  EXPECT_LT(3 * allowed, 2 * more) << "too little of a difference to show anything";
}

}  // namespace
}  // namespace fsdp::e2e
