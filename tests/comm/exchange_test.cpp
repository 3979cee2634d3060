#include "comm/exchange.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "util/text.h"

namespace fsdp::comm {
namespace {

/// Writes down what is asked of it.
class RecordedExchange final : public Exchange {
 public:
  Transfer send(int to, int tag, const at::Tensor& tensor) override {
    calls.push_back(util::concat("send ", tensor.numel(), " to ", to, " as ", tag));
    return {};
  }
  Transfer receive(int from, int tag, const at::Tensor& tensor) override {
    calls.push_back(util::concat("receive ", tensor.numel(), " from ", from, " as ", tag));
    return {};
  }
  void wait(const Transfer&) override { calls.push_back("wait"); }
  void close() override {}

  std::vector<std::string> calls;
};

TEST(SwapWithAll, AnnouncesAllThatItReceivesBeforeItSends) {
  RecordedExchange exchange;
  const auto of_rank = [](int rank) { return at::empty({10 + rank}); };
  exchange.swap_with_all(1, 3, 7, of_rank, [](int rank) { return at::empty({20 + rank}); });
  EXPECT_THAT(exchange.calls,
              ::testing::ElementsAre("receive 10 from 0 as 7", "receive 12 from 2 as 7", "send 22 to 2 as 7",
                                     "send 20 to 0 as 7", "wait", "wait", "wait", "wait"));
}

TEST(SwapWithAll, LeavesOutEmptyTensors) {
  RecordedExchange exchange;
  exchange.swap_with_all(
      0, 3, 7, [](int rank) { return at::empty({rank - 1}); },
      [](int rank) { return at::empty({2 - rank}); });
  EXPECT_THAT(exchange.calls,
              ::testing::ElementsAre("receive 1 from 2 as 7", "send 1 to 1 as 7", "wait", "wait"));
}

}  // namespace
}  // namespace fsdp::comm
