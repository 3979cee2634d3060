#include "data/loading/loader.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <map>

#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

DataOptions small_options(const std::string& path) {
  DataOptions options;
  options.train = {path};
  options.validation = {path};
  options.sequence_length = 4;
  options.micro_batch_size = 2;
  options.shuffle = false;
  return options;
}

/// The sample of a row of counting() tokens.
int64_t sample_of(const Batch& batch, int64_t row, int64_t length) {
  return batch.inputs[row][0].item<int64_t>() / length;
}

TEST(TrainLoader, GivesInputsAndTheTargetsOneFurther) {
  TemporaryFolder folder;
  TrainLoader loader(small_options(write_tokens(folder, "a", counting(33))), 256, 1, {});
  EXPECT_EQ(loader.num_samples(), 8);
  EXPECT_EQ(loader.num_tokens(), 33);
  EXPECT_EQ(loader.samples_per_step(), 2);
  Batch batch = loader.batch(6, 0);
  ASSERT_EQ(batch.inputs.sizes(), (at::IntArrayRef{2, 4}));
  EXPECT_EQ(batch.valid_rows, 2);
  EXPECT_TRUE(batch.inputs.equal(at::arange(24, 32, at::kLong).view({2, 4})));
  EXPECT_TRUE(batch.targets.equal(at::arange(25, 33, at::kLong).view({2, 4})));
}

TEST(TrainLoader, CountsOnlySamplesWhoseLastTargetIsThere) {
  TemporaryFolder folder;
  EXPECT_EQ(TrainLoader(small_options(write_tokens(folder, "a", counting(32))), 256, 1, {}).num_samples(), 7);
}

TEST(TrainLoader, MixesSetsByTheirWeights) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(4 * 10 + 1)));
  std::vector<uint16_t> high;
  for (int i = 0; i < 4 * 7 + 1; ++i) high.push_back(static_cast<uint16_t>(100 + i));
  options.train.push_back(write_tokens(folder, "b", high));
  options.train_weights = {3, 1};
  options.shuffle = true;
  const int64_t steps = 2000;
  std::map<int64_t, int64_t> counts;  // of samples
  const TrainLoader loader(options, 256, 1, {});
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = loader.batch(2 * step, 0);
    for (int64_t row = 0; row < 2; ++row) ++counts[batch.inputs[row][0].item<int64_t>()];
  }
  int64_t of_first = 0;
  for (const auto& [first_token, count] : counts) of_first += first_token < 100 ? count : 0;
  EXPECT_NEAR(static_cast<double>(of_first) / (2 * steps), 0.75, 0.03);
  EXPECT_EQ(counts.size(), 17u);  // every sample of both
  // Each rank of a larger world reads its rows of the same sequence.
  for (int rank = 0; rank < 3; ++rank) {
    const TrainLoader part(options, 256, 1, {rank, 3, 1});
    EXPECT_TRUE(part.batch(0, 0).inputs.equal(loader.batch(2 * rank, 0).inputs));
  }
  EXPECT_EQ(loader.num_samples(), 17);
  EXPECT_NEAR(loader.samples_of(1, 4000), 1000, 1);
}

TEST(TrainLoader, RefusesSetsThatCannotBeMixed) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(41)));
  options.train_weights = {1, 2};
  expect_error(ErrorKind::kUsage, {"one number for each of the 1 entries", "but has 2"},
               [&] { TrainLoader(options, 256, 1, {}); });
  options.train.push_back(write_tokens(folder, "short", counting(4)));
  expect_error(ErrorKind::kData, {"short", "has 4 tokens"}, [&] { TrainLoader(options, 256, 1, {}); });
}

TEST(TrainLoader, TakesPatternsOfFiles) {
  TemporaryFolder folder;
  write_tokens(folder, "part-2.bin", {3, 4, 5, 6, 7, 8});
  write_tokens(folder, "part-1.bin", {0, 1, 2});
  DataOptions options = small_options((folder / "part-*.bin").string());
  EXPECT_TRUE(
      TrainLoader(options, 256, 1, {}).batch(0, 0).targets.equal(at::arange(1, 9, at::kLong).view({2, 4})));
  options.train = {(folder / "none-*.bin").string()};
  expect_error(ErrorKind::kData, {"none-*.bin"}, [&] { TrainLoader(options, 256, 1, {}); });
}

TEST(TrainLoader, ReadsSamplesAcrossFiles) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", {0, 1, 2}));
  options.train.push_back(write_tokens(folder, "b", {3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(
      TrainLoader(options, 256, 1, {}).batch(0, 0).targets.equal(at::arange(1, 9, at::kLong).view({2, 4})));
}

// The formula of the design: ((s*A + m)*W + r)*B + b modulo the number of samples, over several epochs.
TEST(TrainLoader, FollowsTheDocumentedOrderWithoutShuffling) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(4 * 25 + 1)));
  const int64_t A = 2, W = 3, B = 2;
  for (int rank = 0; rank < W; ++rank) {
    TrainLoader loader(options, 256, 1, {rank, static_cast<int>(W), A});
    for (int64_t step = 0; step < 6; ++step) {
      for (int64_t micro = 0; micro < A; ++micro) {
        Batch batch = loader.batch(step * A * W * B, micro);
        for (int64_t row = 0; row < B; ++row) {
          EXPECT_EQ(sample_of(batch, row, 4), (((step * A + micro) * W + rank) * B + row) % 25);
        }
      }
    }
  }
}

// The same samples in the same order, however they are divided among ranks, micro-batches and rows.
TEST(TrainLoader, ShufflesIndependentlyOfWorldSize) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(4 * 60 + 1)));
  options.shuffle = true;
  auto walk = [&options](int world_size, int64_t accumulation, int64_t rows) {
    options.micro_batch_size = rows;
    std::map<int64_t, int64_t> sample_at;  // by global position
    for (int rank = 0; rank < world_size; ++rank) {
      TrainLoader loader(options, 256, 99, {rank, world_size, accumulation});
      for (int64_t first = 0; first < 120; first += loader.samples_per_step()) {
        for (int64_t micro = 0; micro < accumulation; ++micro) {
          Batch batch = loader.batch(first, micro);
          for (int64_t row = 0; row < rows; ++row) {
            sample_at[first + (micro * world_size + rank) * rows + row] = sample_of(batch, row, 4);
          }
        }
      }
    }
    return sample_at;
  };
  auto alone = walk(1, 1, 12);
  ASSERT_EQ(alone.size(), 120u);
  EXPECT_EQ(walk(3, 1, 4), alone);
  EXPECT_EQ(walk(2, 3, 2), alone);
  EXPECT_EQ(walk(4, 2, 1), alone);
}

TEST(TrainLoader, ExplainsTheArithmeticWhenThereAreTooFewSamples) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(33)));
  TrainLoader(options, 256, 1, {0, 2, 2});  // exactly 8
  expect_error(ErrorKind::kData,
               {"have 8 samples", "33 tokens", "consumes 12", "3 accumulation", "2 ranks", "2 seq"}, [&] {
                 TrainLoader(options, 256, 1, {0, 2, 3});
               });
  expect_error(ErrorKind::kData, {"have 8 samples"}, [&] {
    TrainLoader(options, 256, 1, {0, 2, INT64_MAX / 2});
  });
  options.sequence_length = INT64_MAX;
  expect_error(ErrorKind::kData, {"have 0 samples"}, [&] { TrainLoader(options, 256, 1, {}); });
}

TEST(TrainLoader, RefusesAnIdOutsideTheVocabularyAtOpening) {
  TemporaryFolder folder;
  std::string path = write_tokens(folder, "a", counting(33));
  TrainLoader(small_options(path), 33, 1, {});
  expect_error(ErrorKind::kData, {path, "token 32", "id 32", "at least 33"},
               [&] { TrainLoader(small_options(path), 32, 1, {}); });
}

TEST(TrainLoader, ChecksEveryBatchForIdsThatCameAfterOpening) {
  TemporaryFolder folder;
  std::string path = write_tokens(folder, "a", counting(33));
  TrainLoader loader(small_options(path), 100, 1, {});
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(2 * 10).write("\x64\x00", 2);
  loader.batch(0, 0);
  expect_error(ErrorKind::kData, {path, "token 10", "id 100"}, [&] { loader.batch(2, 0); });
}

TEST(TrainLoader, RefusesOptionsWithoutMeaning) {
  TemporaryFolder folder;
  std::string path = write_tokens(folder, "a", counting(33));
  DataOptions options = small_options(path);
  options.sequence_length = 0;
  expect_error(ErrorKind::kUsage, {"data.sequence_length = 0"}, [&] { TrainLoader(options, 256, 1, {}); });
  expect_error(ErrorKind::kUsage, {"data.train"}, [&] { TrainLoader(DataOptions{}, 256, 1, {}); });
  expect_error(ErrorKind::kUsage, {"accumulation"}, [&] {
    TrainLoader(small_options(path), 256, 1, {0, 1, 0});
  });
}

TEST(ValidationLoader, WalksEverySampleOnceInEqualNumbersOfBatches) {
  TemporaryFolder folder;
  for (int64_t samples = 1; samples <= 20; ++samples) {
    DataOptions options = small_options(write_tokens(folder, "a", counting(4 * samples + 3)));
    for (int world_size = 1; world_size <= 4; ++world_size) {
      std::vector<int> seen(static_cast<size_t>(samples), 0);
      int64_t batches = -1;
      for (int rank = 0; rank < world_size; ++rank) {
        ValidationLoader loader(options, 256, 0, {rank, world_size, 1});
        EXPECT_EQ(loader.num_samples(), samples);
        if (batches < 0) batches = loader.num_batches();
        EXPECT_EQ(loader.num_batches(), batches);
        for (int64_t i = 0; i < batches; ++i) {
          Batch batch = loader.batch(i);
          int64_t rows = batch.inputs.size(0);
          for (int64_t row = 0; row < rows; ++row) {
            if (row < batch.valid_rows) {
              ++seen[static_cast<size_t>(sample_of(batch, row, 4))];
              EXPECT_TRUE(batch.targets[row].equal(batch.inputs[row] + 1));
            } else {
              EXPECT_TRUE(batch.targets[row].eq(kIgnoredTarget).all().item<bool>());
              EXPECT_TRUE(batch.inputs[row].eq(0).all().item<bool>());
            }
          }
        }
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(samples), 1)) << world_size << " ranks";
      int64_t rows = std::min<int64_t>(2, samples);
      EXPECT_EQ(batches, (samples + world_size * rows - 1) / (world_size * rows));
    }
  }
}

TEST(ValidationLoader, StopsAtTheLargestNumberOfSamples) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(81)));
  EXPECT_EQ(ValidationLoader(options, 256, 5, {}).num_samples(), 5);
  EXPECT_EQ(ValidationLoader(options, 256, 5, {}).num_batches(), 3);
  EXPECT_EQ(ValidationLoader(options, 256, 5, {}).batch(2).valid_rows, 1);
  EXPECT_EQ(ValidationLoader(options, 256, 500, {}).num_samples(), 20);
}

TEST(ValidationLoader, HasNoMoreRowsThanSamples) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(9)));
  options.micro_batch_size = INT64_MAX;
  EXPECT_EQ(ValidationLoader(options, 256, 0, {1, 2, 1}).batch(0).inputs.size(0), 2);
}

TEST(ValidationLoader, RefusesFilesWithoutAWholeSample) {
  TemporaryFolder folder;
  DataOptions options = small_options(write_tokens(folder, "a", counting(4)));
  expect_error(ErrorKind::kData, {folder / "a", "4 tokens", "needs 5"},
               [&] { ValidationLoader(options, 256, 0, {}); });
}

}  // namespace
}  // namespace fsdp::data
