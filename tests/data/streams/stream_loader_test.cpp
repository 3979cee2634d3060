// Texts as training sets of a loader, on several ranks and in mixtures.

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <map>

#include "data/loading/loader.h"
#include "data/streams/stream_fixtures.h"
#include "data/streams/stream_samples.h"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;
using fsdp::testing::TemporaryFolder;

DataOptions stream_options_of(const std::vector<std::string>& entries, const fs::path& cache) {
  read_texts_as_data_sets();
  DataOptions options;
  options.train = entries;
  options.sequence_length = 16;
  options.micro_batch_size = 2;
  options.tokenizer = kGpt2Kind;
  options.shuffle_block_size = 50;
  options.cache_folder = cache.string();
  return options;
}

/// The rows of the positions [begin, end) that all ranks of a world read, step by step.
std::map<int64_t, std::vector<int64_t>> rows_of_world(const DataOptions& given, int world_size, int64_t begin,
                                                      int64_t end, const nlohmann::json& state = nullptr) {
  std::map<int64_t, std::vector<int64_t>> rows;
  for (int rank = 0; rank < world_size; ++rank) {
    TrainLoader loader(given, 70'000, 1, {.rank = rank, .world_size = world_size});
    loader.resume(state);
    for (int64_t position = begin; position < end; position += loader.samples_per_step()) {
      const Batch batch = loader.batch(position, 0);
      for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
        const int64_t* ids = batch.inputs[row].const_data_ptr<int64_t>();
        rows[batch.first_row + row].assign(ids, ids + batch.inputs.size(1));
      }
    }
  }
  return rows;
}

TEST(StreamLoader, GivesTheSameSamplesToEveryWorldSize) {
  const TemporaryFolder folder, cache;
  std::vector<std::string> files;
  for (unsigned i = 0; i < 5; ++i)
    files.push_back(folder.write("t" + std::to_string(i) + ".txt", prose(5'000, i)));
  for (const bool shuffle : {false, true}) {
    DataOptions options = stream_options_of(files, cache.path());
    options.shuffle = shuffle;
    const TrainLoader loader(options, 70'000, 1, {});
    EXPECT_EQ(loader.known_samples(), std::nullopt);
    const int64_t pass = loader.num_samples(), end = 24 * (2 * pass / 24 + 2);
    const auto one = rows_of_world(options, 1, 0, end);
    EXPECT_EQ(rows_of_world(options, 3, 0, end), one);
    EXPECT_EQ(rows_of_world(options, 4, 0, end), one);
    // After any position, with an empty cache and another number of ranks.
    const int64_t begin = 24 * (pass / 2 / 24);
    options.cache_folder = (cache / (shuffle ? "second" : "first")).string();
    const auto rest =
        rows_of_world(options, 3, begin, end, nlohmann::json::parse(loader.state(begin).dump()));
    for (const auto& [position, row] : rest) ASSERT_EQ(row, one.at(position)) << position;
  }
}

TEST(StreamLoader, MixesTextsAndTokenFiles) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> entries = {
      folder.write("a.txt", std::string(40'000, 'a')), folder.write("b.jsonl", json_lines(40, 300, 1)),
      write_tokens(folder, "c.bin", std::vector<uint16_t>(16 * 30 + 1, 9))};
  DataOptions options = stream_options_of(entries, cache.path());
  options.train_weights = {2, 1, 1};
  options.tokenizer = "bytes";
  for (const bool shuffle : {false, true}) {
    options.shuffle = shuffle;
    constexpr int64_t kPositions = 2400;
    const auto one = rows_of_world(options, 1, 0, kPositions);
    EXPECT_EQ(rows_of_world(options, 3, 0, kPositions), one);
    EXPECT_EQ(rows_of_world(options, 4, 0, kPositions), one);
    int64_t of_a = 0, of_c = 0;
    for (const auto& [position, row] : one) {
      of_a += row == std::vector<int64_t>(16, 'a') ? 1 : 0;
      of_c += row == std::vector<int64_t>(16, 9) ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(of_a), kPositions / 2, 60);
    EXPECT_NEAR(static_cast<double>(of_c), kPositions / 4, 60);
    const TrainLoader loader(options, 70'000, 1, {});
    loader.batch(1200, 0);
    DataOptions elsewhere = options;
    elsewhere.cache_folder = (cache / (shuffle ? "second" : "first")).string();
    const auto rest = rows_of_world(elsewhere, 1, 1200, kPositions, loader.state(1200));
    for (const auto& [position, row] : rest) ASSERT_EQ(row, one.at(position)) << position;
  }
}

TEST(StreamLoader, IgnoresAStateThatIsNone) {
  const TemporaryFolder folder, cache;
  const DataOptions options = stream_options_of({folder.write("a.txt", prose(20'000, 1))}, cache.path());
  const auto expected = rows_of_world(options, 1, 0, 20);
  for (const nlohmann::json& state :
       {nlohmann::json(5), nlohmann::json::array(), nlohmann::json::array({{{"pass", "x"}}}),
        nlohmann::json::array({{{"pass", -1}, {"text", 0}, {"text_begin", 0}}}),
        nlohmann::json::array({{{"pass", 0}, {"text", 99}, {"text_begin", 0}}})}) {
    EXPECT_EQ(rows_of_world(options, 1, 0, 20, state), expected) << state;
  }
}

// The index of a set that is read in order counts its positions, and at() of sets with an end does not
// change.
TEST(Mixture, CountsThePositionsOfASetBeforeAnother) {
  for (const bool shuffle : {false, true}) {
    const Mixture mixture({3, 1, 0.001}, shuffle, 7);
    std::vector<int64_t> counts(3);
    for (int64_t index = 0; index < 3 * Mixture::kBlock / 2; ++index) {
      if (index % 997 == 0 || index % Mixture::kBlock < 2) {
        for (size_t set = 0; set < 3; ++set)
          ASSERT_EQ(mixture.count_before(set, index), counts[set]) << index;
      }
      ++counts[mixture.at(index).set];
    }
  }
}

}  // namespace
}  // namespace fsdp::data
