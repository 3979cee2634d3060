#include "comm/api/rank_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/util/text.h"
#include "comm/threads/thread_communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

TEST(RankTree, HasEachRankReportOnceOverAsManyLevelsAsTheLogarithm) {
  for (int world : {1, 4, 16, 17, 64, 255, 4096, 16384, 100'000}) {
    size_t levels = 1;
    for (int64_t reach = 16; reach < world; reach *= 16) ++levels;
    std::set<std::vector<int>> groups;
    int64_t reports = 0;
    for (int rank = 0; rank < world; ++rank) {
      const auto of_rank = RankTree::groups_of(rank, world);
      EXPECT_LE(of_rank.size(), levels);
      for (size_t level = 0; level < of_rank.size(); ++level) {
        const std::vector<int>& group = of_rank[level];
        EXPECT_LE(group.size(), 16u);
        EXPECT_TRUE(std::ranges::find(group, rank) != group.end());
        EXPECT_EQ(group.front() == rank, level + 1 < of_rank.size() || rank == 0);
        reports += group.front() != rank;
        // The same seen from its first rank.
        EXPECT_EQ(RankTree::groups_of(group.front(), world).at(level), group);
      }
    }
    EXPECT_EQ(reports, world - 1) << world;
  }
}

/// "0 1 2 ...", which tells the order of the texts; checks the ranks that `combine` is told.
std::string numbers(const RankTree& tree, int rank) {
  return tree.reduce(std::to_string(rank),
                     [](const std::vector<std::string>& texts, int first, int last) {
                       std::string all = util::join(texts, " ");
                       EXPECT_EQ(all.substr(0, all.find(' ')), std::to_string(first));
                       EXPECT_EQ(all.substr(all.rfind(' ') + 1), std::to_string(last));
                       return all;
                     },
                     {.unit = "numbers"});
}

TEST(RankTree, CombinesTextsInTheOrderOfRanks) {
  for (int world : {1, 2, 15, 16, 17, 40}) {
    std::string expected = "0";
    for (int rank = 1; rank < world; ++rank) expected += concat(" ", rank);
    run_ranks_as_threads(world, [&](Communicator& communicator) {
      const RankTree tree(communicator);
      for (int time = 0; time < 2; ++time) {
        const std::string all = numbers(tree, communicator.rank());
        EXPECT_TRUE(communicator.rank() > 0 || all == expected) << all;
      }
    });
  }
}

/// Says that it is of a GPU, whose groups are not to be made for texts.
class OnGpu final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  at::Device device() const override { return {at::kCUDA, 0}; }
  std::shared_ptr<Communicator> new_group(const std::string&, const std::vector<int>&) override {
    ADD_FAILURE() << "a group of the device";
    return nullptr;
  }
};

TEST(RankTree, OfAGpusCommunicatorUsesGroupsOfTheHost) {
  run_ranks_as_threads(18, [](Communicator& communicator) {
    OnGpu on_gpu(testing::borrowed(communicator));
    const std::string all = numbers(RankTree(on_gpu), communicator.rank());
    EXPECT_TRUE(communicator.rank() > 0 || all.ends_with(" 16 17")) << all;
  });
}

}  // namespace
}  // namespace fsdp::comm
