#include "data/tokens/token_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/loading/loader.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

/// Samples of given lengths, whose tokens are the sample's number.
class OfLengths final : public Samples {
 public:
  explicit OfLengths(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  int64_t num_samples() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens() const override { return 0; }
  std::string name() const override { return "lengths"; }
  int64_t length(int64_t sample) const override { return lengths_[static_cast<size_t>(sample)]; }
  Row read(int64_t, int64_t*, int64_t*) const override { return {}; }

 private:
  std::vector<int64_t> lengths_;
};

std::vector<int64_t> varied_lengths(int64_t count, int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(1 + (i * 7919 + i * i) % longest);
  return lengths;
}

TEST(TokenBatches, HoldEverySampleOnceWithinTheLimit) {
  const OfLengths samples(varied_lengths(1000, 64));
  const TokenBatches batches(samples, 256, true, 3);
  std::set<int64_t> seen;
  int64_t padded = 0, tokens = 0;
  for (int64_t i = 0; i < batches.num_batches(); ++i) {
    int64_t longest = 0;
    for (int64_t sample : batches.batch(i)) {
      EXPECT_TRUE(seen.insert(sample).second) << sample;
      longest = std::max(longest, samples.length(sample));
      tokens += samples.length(sample);
    }
    EXPECT_EQ(longest, samples.length(batches.batch(i).back()));
    const int64_t size = longest * static_cast<int64_t>(batches.batch(i).size());
    EXPECT_LE(size, 256);
    padded += size;
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_LT(padded, tokens * 102 / 100) << "rows of like length need little padding";
}

TEST(TokenBatches, AreAsFullAsTheNextRowAllows) {
  const TokenBatches batches(OfLengths({4, 4, 4, 4, 4, 8}), 16, false, 0);
  ASSERT_EQ(batches.num_batches(), 2);
  EXPECT_EQ(batches.batch(0).size(), 4u);
  EXPECT_EQ(batches.batch(1).size(), 2u) << "4 and 8, padded to 16";
}

TEST(TokenBatches, DependOnTheSeedOnlyWhenShuffled) {
  const OfLengths samples(std::vector<int64_t>(60, 5));
  const auto first = [&](bool shuffle, uint64_t seed) {
    const TokenBatches batches(samples, 20, shuffle, seed);
    return std::vector<int64_t>(batches.batch(0).begin(), batches.batch(0).end());
  };
  EXPECT_EQ(first(false, 1), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(first(false, 2), first(false, 1));
  EXPECT_EQ(first(true, 1), first(true, 1));
  EXPECT_NE(first(true, 1), first(true, 2));
}

TEST(TokenBatches, RefuseASampleThatIsTooLongAndUnknownLengths) {
  expect_error(ErrorKind::kUsage,
               {"data.max_tokens: expected at least the tokens", "found 8, and a sample of 9"}, [] {
                 TokenBatches(OfLengths({3, 9}), 8, false, 0);
               });
  expect_error(ErrorKind::kUsage, {"expected samples with known lengths"}, [] {
    TokenBatches(OfLengths({3, 0}), 8, false, 0);
  });
}

class LoaderByTokens : public ::testing::Test {
 protected:
  /// Documents of 1 to 12 tokens and the separator 0, each of ids that no other has.
  void SetUp() override {
    std::vector<uint16_t> ids;
    uint16_t id = 0;
    for (int i = 0; i < 80; ++i) {
      for (int k = 0; k < 1 + (i * 5) % 12; ++k) ids.push_back(++id);
      ids.push_back(0);
    }
    largest_ = id;
    options_.train = {write_tokens(folder_, "documents.bin", ids)};
    options_.documents = "split";
    options_.document_separator = 0;
    options_.sequence_length = 8;
    options_.max_tokens = 24;
  }

  TrainLoader loader(int rank = 0, int world = 1, int64_t micro_batches = 1) {
    return TrainLoader(options_, largest_ + 1, 5, {rank, world, micro_batches});
  }

  testing::TemporaryFolder folder_;
  DataOptions options_;
  int64_t largest_ = 0;
};

TEST_F(LoaderByTokens, RowsOfValidationAreAsLongAsTheLongestOfTheirBatch) {
  options_.validation = options_.train;
  options_.micro_batch_size = 3;
  const auto batches_of = [&](int64_t max_tokens, int64_t& padded) {
    options_.max_tokens = max_tokens;
    const ValidationLoader loader(options_, largest_ + 1, 0, {});
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < loader.num_batches(); ++i) {
      const Batch batch = loader.batch(i);
      EXPECT_EQ(batch.inputs.size(1),
                max_tokens == 0 ? options_.sequence_length : *std::ranges::max_element(batch.row_tokens));
      padded += batch.inputs.numel();
      for (int64_t at = 0; at < batch.targets.numel(); ++at) {
        const int64_t target = batch.targets.view({-1})[at].item<int64_t>();
        if (target != kIgnoredTarget) targets.push_back(target);
      }
    }
    return targets;
  };
  int64_t whole_rows = 0, cut_rows = 0;
  EXPECT_EQ(batches_of(24, cut_rows), batches_of(0, whole_rows)) << "the same targets count";
  EXPECT_LT(cut_rows, whole_rows);
}

TEST_F(LoaderByTokens, AnEpochHasEveryTokenOnceAndAllBatchesFit) {
  const TrainLoader whole = loader();
  std::multiset<int64_t> targets;
  std::set<int64_t> widths;
  for (int64_t i = 0; i < whole.num_samples(); ++i) {
    const Batch batch = whole.batch(i, 0);
    EXPECT_LE(batch.inputs.numel(), 24);
    widths.insert(batch.inputs.size(1));
    int64_t counted = 0;
    for (int64_t at = 0; at < batch.targets.numel(); ++at) {
      const int64_t target = batch.targets.view({-1})[at].item<int64_t>();
      if (target == kIgnoredTarget) continue;
      ++counted;
      if (target != 0) targets.insert(target);
    }
    EXPECT_EQ(batch.counted, counted);
  }
  EXPECT_GT(widths.size(), 3u);
  EXPECT_EQ(targets.size(), std::set<int64_t>(targets.begin(), targets.end()).size()) << "none twice";
  // All but the first token of each document are targets.
  EXPECT_EQ(static_cast<int64_t>(targets.size()), largest_ - 80);
}

TEST_F(LoaderByTokens, TheOrderIsTheSameAtAnyWorldSize) {
  const TrainLoader whole = loader();
  for (const auto& [world, micro_batches] : {std::pair{2, 2}, {4, 1}, {1, 4}}) {
    for (int rank = 0; rank < world; ++rank) {
      const TrainLoader part = loader(rank, world, micro_batches);
      EXPECT_EQ(part.samples_per_step(), 4);
      for (int64_t micro = 0; micro < micro_batches; ++micro) {
        const Batch batch = part.batch(8, micro), expected = whole.batch(8 + micro * world + rank, 0);
        EXPECT_TRUE(batch.inputs.equal(expected.inputs));
        EXPECT_TRUE(batch.targets.equal(expected.targets));
        EXPECT_EQ(batch.first_row, expected.first_row);
      }
    }
  }
}

TEST_F(LoaderByTokens, EpochsVisitTheSameBatchesInAnotherOrder) {
  const TrainLoader whole = loader();
  const int64_t epoch = whole.num_samples();
  const auto firsts = [&](int64_t begin) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < epoch; ++i) ids.push_back(whole.batch(begin + i, 0).inputs[0][0].item<int64_t>());
    return ids;
  };
  std::vector<int64_t> one = firsts(0), two = firsts(epoch);
  EXPECT_NE(one, two);
  std::sort(one.begin(), one.end());
  std::sort(two.begin(), two.end());
  EXPECT_EQ(one, two);
}

TEST_F(LoaderByTokens, TooFewBatchesForAStepAreRefused) {
  expect_error(ErrorKind::kData, {"batches of at most 24 tokens where one step consumes 500"},
               [&] { loader(0, 1, 500); });
}

}  // namespace
}  // namespace fsdp::data
