#include "comm/api/forwarding_communicator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/api/communicator.h"
#include "comm/api/stream_communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/counting_communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

using testing::borrowed;
using testing::CountingCommunicator;

/// Changes nothing.
class Plain final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<Plain>(inner().new_group(name, ranks));
  }
};

TEST(ForwardingCommunicator, HandsEveryCollectiveToTheInnerOne) {
  run_ranks_as_threads(2, [](Communicator& threads) {
    auto counting = std::make_shared<CountingCommunicator>(threads);
    Plain plain(counting);
    EXPECT_EQ(plain.rank(), threads.rank());
    EXPECT_EQ(plain.world_size(), 2);
    EXPECT_EQ(plain.backend_name(), "threads");
    const float own = static_cast<float>(plain.rank());
    const CallSite site{.unit = "test", .pass = "forward"};
    at::Tensor whole = plain.allocate(4, at::kFloat), part = at::full({2}, own + 1);
    plain.all_gather(whole, part, site)->wait();
    EXPECT_TRUE(whole.equal(at::tensor({1.f, 1.f, 2.f, 2.f})));
    plain.reduce_scatter(part, whole, site)->wait();
    EXPECT_TRUE(part.equal(at::full({2}, 2 * (own + 1))));
    at::Tensor most = at::full({1}, own);
    plain.all_reduce(most, ReduceOp::kMax, site)->wait();
    EXPECT_EQ(most.item<float>(), 1);
    at::Tensor sent = at::full({3}, own);
    plain.broadcast(sent, 1, site)->wait();
    EXPECT_TRUE(sent.equal(at::ones({3})));
    at::Tensor from_before = at::empty({1});
    plain.shift(from_before, at::full({1}, own), site)->wait();
    EXPECT_EQ(from_before.item<float>(), 1 - own);
    plain.barrier(site);
    EXPECT_EQ(counting->names(),
              (std::vector<std::string>{"all_gather test", "reduce_scatter test", "all_reduce test",
                                        "broadcast test", "shift test", "barrier test"}));
    EXPECT_EQ(counting->calls()[0].numel, 2);
    EXPECT_EQ(counting->calls()[1].numel, 2);
  });
}

TEST(ForwardingCommunicator, HandsTheCheckToTheInnerOne) {
  struct Failed final : testing::ForwardingCommunicator {
    using ForwardingCommunicator::ForwardingCommunicator;
    void check() const override { util::fail(ErrorKind::kPeerLost, "gone"); }
  };
  auto alone = std::make_shared<SingleCommunicator>();
  Plain(alone).check();
  EXPECT_THROW(Plain(std::make_shared<Failed>(alone)).check(), util::Error);
}

TEST(ForwardingCommunicator, HasTheCommonMemoryOfTheInnerOne) {
  run_ranks_as_threads(2, [](Communicator& threads) {
    auto plain = std::make_shared<Plain>(borrowed(threads));
    ASSERT_NE(plain->common_memory(), nullptr);
    bool given = false;
    plain->common_memory()
        ->enqueue_with_memory(64, {.unit = "test"}, [&](c10::DataPtr memory) { given = memory != nullptr; })
        ->wait();
    EXPECT_TRUE(given);
    plain->barrier({.unit = "test"});
  });
  EXPECT_EQ(Plain(std::make_shared<SingleCommunicator>()).common_memory(), nullptr);
}

TEST(ForwardingCommunicator, DecoratesSubgroupsThatNeedConnections) {
  run_ranks_as_threads(3, [](Communicator& threads) {
    auto plain = std::make_shared<Plain>(borrowed(threads));
    EXPECT_EQ(plain->subgroup("all", {0, 1, 2}), plain);
    if (threads.rank() == 2) {
      EXPECT_EQ(plain->subgroup("alone", {2})->world_size(), 1);
    } else {
      auto pair = plain->subgroup("pair", {0, 1});
      EXPECT_NE(std::dynamic_pointer_cast<Plain>(pair), nullptr);
      pair->barrier({.unit = "test"});
    }
    plain->barrier({.unit = "test"});
  });
}

/// Memory of the host is none of a device's.
TEST(ForwardingCommunicator, StagedCollectivesHaveNoCommonMemory) {
  run_ranks_as_threads(2, [](Communicator& threads) {
    auto staged = make_staged_communicator(at::Device("cuda:0"), borrowed(threads));
    EXPECT_EQ(staged->common_memory(), nullptr);
  });
}

}  // namespace
}  // namespace fsdp::comm
