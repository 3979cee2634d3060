#include "model/parallel/cut_sequence.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numeric>

#include "model/parallel/attention_blocks.h"

namespace fsdp::parallel {
namespace {

TEST(CutSequence, GivesTheFirstAndTheLastChunkToTheSameRank) {
  const at::Tensor row = at::arange(8).unsqueeze(0);
  EXPECT_TRUE((CutSequence{.rank = 0, .degree = 2})
                  .part_of(row, 1)
                  .equal(at::tensor({0, 1, 6, 7}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE((CutSequence{.rank = 1, .degree = 2})
                  .part_of(row, 1)
                  .equal(at::tensor({2, 3, 4, 5}, at::kLong).unsqueeze(0)));
  EXPECT_THROW((CutSequence{.rank = 0, .degree = 3}).part_of(row, 1), std::exception);
}

std::vector<TokenRun> runs_of(int64_t rank, int degree, int64_t length) {
  const auto [first, second] = CutSequence{.degree = degree}.chunks_of(rank);
  return {{first * length, length, 0}, {second * length, length, length}};
}

/// Of all keys that its queries see, in the order in which they come round a ring.
std::vector<AttentionBlock> blocks_of(int64_t rank, int degree, int64_t length, const Documents* documents) {
  std::vector<AttentionBlock> all;
  for (int source = 0; source < degree; ++source) {
    const auto some =
        attention_blocks(runs_of(rank, degree, length), runs_of(source, degree, length), 1, documents);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

/// Pairs of a query and a key.
int64_t pairs(const std::vector<AttentionBlock>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0}, [](int64_t sum, const AttentionBlock& b) {
    return sum + b.queries * b.keys - (b.causal ? b.queries * (b.queries - 1) / 2 : 0);
  });
}

TEST(AttentionBlocks, GiveAllRanksTheSameWork) {
  for (int degree : {1, 2, 3, 4, 8}) {
    const int64_t length = 6, tokens = 2 * degree * length;
    for (int64_t rank = 0; rank < degree; ++rank) {
      EXPECT_EQ(degree * pairs(blocks_of(rank, degree, length, nullptr)), tokens * (tokens + 1) / 2)
          << rank << " of " << degree;
    }
  }
}

TEST(AttentionBlocks, OfDocumentsHaveEachPairOnce) {
  const Documents documents = {{0, 3, 12, 13, 20}};
  int64_t found = 0, expected = 0;
  for (int64_t rank = 0; rank < 2; ++rank) found += pairs(blocks_of(rank, 2, 6, &documents));
  for (int64_t length : {3, 9, 1, 7, 4}) expected += length * (length + 1) / 2;
  EXPECT_EQ(found, expected);
}

TEST(AttentionBlocks, AreOneForAChunkAndTheKeysThatAreThere) {
  const auto own = attention_blocks(runs_of(0, 2, 4), runs_of(0, 2, 4), 3, nullptr);
  EXPECT_EQ(own, (std::vector<AttentionBlock>{
                     {.rows = 3, .query = 0, .queries = 4, .key = 0, .keys = 4, .causal = true},
                     {.rows = 3, .query = 4, .queries = 4, .key = 0, .keys = 8, .causal = true}}));
  const auto later = attention_blocks(runs_of(0, 2, 4), runs_of(1, 2, 4), 3, nullptr);
  EXPECT_EQ(later, (std::vector<AttentionBlock>{{.rows = 3, .query = 4, .queries = 4, .key = 0, .keys = 8}}));
}

TEST(CutSequence, SaysWhereItsTokensAre) {
  const CutSequence second{.rank = 1, .degree = 3};  // chunks 1 and 4 of 6
  const auto places = [&](int64_t first, int64_t count) {
    const kernels::RowPieces pieces = second.places(first, count, 12);
    return std::vector<int64_t>(pieces.begins, pieces.begins + pieces.count);
  };
  EXPECT_EQ(places(0, 12), (std::vector<int64_t>{6, 24}));
  EXPECT_EQ(places(0, 6), std::vector<int64_t>{6});
  EXPECT_EQ(places(6, 6), std::vector<int64_t>{24});
  EXPECT_EQ(places(9, 3), std::vector<int64_t>{27});
  EXPECT_EQ(places(0, 4), std::vector<int64_t>{6});
  EXPECT_EQ(places(4, 4), (std::vector<int64_t>{10, 24})) << "the second of three parts";
  EXPECT_EQ(places(8, 4), std::vector<int64_t>{26});
}

}  // namespace
}  // namespace fsdp::parallel
