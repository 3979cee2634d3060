#include "comm/api/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::comm {
namespace {

/// Writes down what is asked of it.
class RecordedExchange final : public Exchange {
 public:
  Transfer send(int to, int tag, const at::Tensor& tensor) override {
    calls.push_back(concat("send ", tensor.numel(), " to ", to, " as ", tag));
    return {};
  }
  Transfer receive(int from, int tag, const at::Tensor& tensor) override {
    if (from == lost) fail(ErrorKind::kPeerLost, "rank ", from, " is gone");
    calls.push_back(concat("receive ", tensor.numel(), " from ", from, " as ", tag));
    return {};
  }
  void wait(const Transfer&) override { calls.push_back("wait"); }
  void close() override {}

  std::vector<std::string> calls;
  int lost = -1;
};

TEST(SwapWithAll, AnnouncesAllThatItReceivesBeforeItSends) {
  RecordedExchange exchange;
  const auto of_rank = [](int rank) { return at::empty({10 + rank}); };
  exchange.swap_with_all(1, 3, 7, of_rank, [](int rank) { return at::empty({20 + rank}); });
  EXPECT_THAT(exchange.calls,
              ::testing::ElementsAre("receive 10 from 0 as 7", "receive 12 from 2 as 7", "send 22 to 2 as 7",
                                     "send 20 to 0 as 7", "wait", "wait", "wait", "wait"));
}

// They would wait for this rank until the time-out, and could not say who is gone.
TEST(SwapWithAll, GivesTheOthersTheirTensorsWhenOneIsGone) {
  RecordedExchange exchange;
  exchange.lost = 2;
  const auto tensor = [](int) { return at::empty({1}); };
  EXPECT_THROW(exchange.swap_with_all(0, 3, 7, tensor, tensor), util::Error);
  EXPECT_THAT(exchange.calls, ::testing::IsSupersetOf({"receive 1 from 1 as 7", "send 1 to 1 as 7"}));
}

TEST(SwapWithAll, LeavesOutEmptyTensors) {
  RecordedExchange exchange;
  exchange.swap_with_all(
      0, 3, 7, [](int rank) { return at::empty({rank - 1}); },
      [](int rank) { return at::empty({2 - rank}); });
  EXPECT_THAT(exchange.calls,
              ::testing::ElementsAre("receive 1 from 2 as 7", "send 1 to 1 as 7", "wait", "wait"));
}

TEST(SwapPieces, TakesEachPieceWhenItIsThereFromAll) {
  RecordedExchange exchange;
  auto& calls = exchange.calls;
  exchange.swap_pieces(0, 3, 7,
                       {.count = 2,
                        .from = [](int, int64_t piece) { return at::empty({10 + piece}); },
                        .to =
                            [&](int other, int64_t piece) {
                              calls.push_back(concat("encode ", piece, " for ", other));
                              return at::empty({20 + piece});
                            },
                        .meanwhile = [&] { calls.push_back("own"); },
                        .arrived = [&](int64_t piece) { calls.push_back(concat("arrived ", piece)); }});
  EXPECT_THAT(calls, ::testing::ElementsAre(
                         "receive 10 from 2 as 7", "receive 10 from 1 as 7", "receive 11 from 2 as 7",
                         "receive 11 from 1 as 7", "encode 0 for 1", "send 20 to 1 as 7", "encode 0 for 2",
                         "send 20 to 2 as 7", "encode 1 for 1", "send 21 to 1 as 7", "encode 1 for 2",
                         "send 21 to 2 as 7", "own", "wait", "wait", "arrived 0", "wait", "wait", "arrived 1",
                         "wait", "wait", "wait", "wait"));
}

TEST(SwapPieces, TakesNothingWhenOneIsGone) {
  RecordedExchange exchange;
  exchange.lost = 2;
  const auto tensor = [](int, int64_t) { return at::empty({1}); };
  const auto never = [](int64_t) { ADD_FAILURE(); };
  EXPECT_THROW(exchange.swap_pieces(0, 3, 7, {1, tensor, tensor, [] { ADD_FAILURE(); }, never}), util::Error);
}

// So that tensors of different collectives wait for each other until the time-out instead of being mixed up.
TEST(TransferTag, DependsOnPurposeTypeAndSize) {
  const int tag = transfer_tag(1, at::ones({3}));
  EXPECT_GE(tag, 0);
  EXPECT_EQ(tag, transfer_tag(1, at::zeros({3})));
  EXPECT_NE(tag, transfer_tag(2, at::ones({3})));
  EXPECT_NE(tag, transfer_tag(1, at::ones({4})));
  EXPECT_NE(tag, transfer_tag(1, at::ones({3}, at::kInt)));
}

}  // namespace
}  // namespace fsdp::comm
