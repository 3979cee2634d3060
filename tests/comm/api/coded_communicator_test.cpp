#include "comm/api/coded_communicator.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <mutex>

#include "comm/api/trace.h"
#include "comm/fake/fake_communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

constexpr CallSite kUnit{.unit = "blocks.1", .pass = "backward"};

at::Tensor values_of(int rank, int64_t numel, double shift = 0) {
  return at::sin(at::arange(numel, at::kDouble) * 12.9898 + 1000.0 * rank + shift).to(at::kFloat);
}

std::shared_ptr<CodedCommunicator> coded(Communicator& communicator, const LinkCoding& coding) {
  return std::make_shared<CodedCommunicator>(testing::borrowed(communicator), coding, communicator.rank());
}

/// values + decoded error of this type.
at::Tensor through_code(LinkType type, const at::Tensor& values) {
  const at::Tensor bytes = at::empty({link_bytes(type, values.numel(), 4)}, at::kByte);
  encode(type, values, bytes);
  at::Tensor back = at::empty_like(values);
  decode(type, bytes, back);
  return back;
}

TEST(CodedCommunicator, GathersTheSameNumbersOnAllRanks) {
  for (const LinkType type : {LinkType::kInt8, LinkType::kInt4}) {
    run_ranks_as_threads(3, [&](Communicator& communicator) {
      const int64_t n = 700;
      at::Tensor whole = at::zeros({3 * n});
      const at::Tensor own = whole.narrow(0, communicator.rank() * n, n);
      own.copy_(values_of(communicator.rank(), n));
      // The input is this rank's part of the output.
      coded(communicator, {.type = type})->all_gather(whole, own, kUnit)->wait();
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_TRUE(at::equal(whole.narrow(0, rank * n, n), through_code(type, values_of(rank, n))));
      }
    });
  }
}

TEST(CodedCommunicator, GathersInBfloat16) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    const at::Tensor own = values_of(communicator.rank(), 512).to(at::kBFloat16);
    at::Tensor whole = at::zeros({1024}, at::kBFloat16);
    coded(communicator, {.type = LinkType::kInt8})->all_gather(whole, own, kUnit)->wait();
    const at::Tensor other = values_of(1 - communicator.rank(), 512).to(at::kBFloat16).to(at::kFloat);
    EXPECT_TRUE(at::equal(whole.narrow(0, 512 * (1 - communicator.rank()), 512),
                          through_code(LinkType::kInt8, other).to(at::kBFloat16)));
  });
}

TEST(CodedCommunicator, ReducesWithItsOwnPartExact) {
  run_ranks_as_threads(3, [&](Communicator& communicator) {
    const int64_t n = 300;
    const at::Tensor input = values_of(communicator.rank(), 3 * n);
    at::Tensor output = at::empty({n});
    coded(communicator, {.type = LinkType::kInt8})->reduce_scatter(output, input, kUnit)->wait();
    at::Tensor expected;
    for (int rank = 0; rank < 3; ++rank) {
      const at::Tensor exact = values_of(rank, 3 * n).narrow(0, communicator.rank() * n, n);
      const at::Tensor part =
          rank == communicator.rank() ? exact : through_code(LinkType::kInt8, exact.contiguous());
      expected = rank == 0 ? part.clone() : expected + part;
    }
    EXPECT_TRUE(at::equal(output, expected));
  });
}

TEST(CodedCommunicator, FinishesSums) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    const at::Tensor input = values_of(communicator.rank(), 2000);
    at::Tensor plain = at::empty({1000}), halved = at::empty({1000});
    const auto group = coded(communicator, {.type = LinkType::kInt8});
    group->reduce_scatter(plain, input, kUnit)->wait();
    const auto halve = [](float* sums, int64_t count) {
      for (int64_t i = 0; i < count; ++i) sums[i] *= 0.5F;
    };
    group->reduce_scatter_and_finish(halved, input, halve, kUnit)->wait();
    EXPECT_TRUE(at::equal(halved, plain * 0.5));
  });
}

TEST(CodedCommunicator, ReducesInPlaceInBfloat16) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    at::Tensor input = values_of(communicator.rank(), 1024).to(at::kBFloat16);
    at::Tensor apart = at::empty({512}, at::kBFloat16);
    const auto group = coded(communicator, {.type = LinkType::kInt8});
    group->reduce_scatter(apart, input.clone(), kUnit)->wait();
    const at::Tensor own = input.narrow(0, communicator.rank() * 512, 512);
    group->reduce_scatter(own, input, kUnit)->wait();
    EXPECT_TRUE(at::equal(own, apart));
  });
}

TEST(CodedCommunicator, AllReducesToTheSameNumbersOnAllRanks) {
  std::mutex mutex;
  std::vector<at::Tensor> results(3);
  run_ranks_as_threads(3, [&](Communicator& communicator) {
    at::Tensor sum = values_of(communicator.rank(), 1000).view({10, 100});  // no multiple of the ranks
    coded(communicator, {.type = LinkType::kInt8, .stochastic = true})
        ->all_reduce(sum, ReduceOp::kSum, kUnit)
        ->wait();
    std::lock_guard lock(mutex);
    results[static_cast<size_t>(communicator.rank())] = sum;
  });
  const at::Tensor exact = values_of(0, 1000) + values_of(1, 1000) + values_of(2, 1000);
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
  EXPECT_LT((results[0].view({-1}) - exact).abs().max().item<float>(), 0.05);
  EXPECT_FALSE(at::equal(results[0].view({-1}), exact));
}

TEST(CodedCommunicator, LeavesOtherCollectivesExact) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    const auto group = coded(communicator, {.type = LinkType::kInt4});
    at::Tensor largest = values_of(communicator.rank(), 300);
    group->all_reduce(largest, ReduceOp::kMax, kUnit)->wait();
    EXPECT_TRUE(at::equal(largest, at::max(values_of(0, 300), values_of(1, 300))));
    at::Tensor counts = at::arange(300);
    group->all_reduce(counts, ReduceOp::kSum, kUnit)->wait();
    EXPECT_TRUE(at::equal(counts, 2 * at::arange(300)));
    const at::Tensor bytes = at::full({300}, 100 + communicator.rank(), at::kByte);
    at::Tensor all = at::empty({600}, at::kByte);
    group->all_gather(all, bytes, kUnit)->wait();
    EXPECT_EQ(all[599].item<int>(), 101);
    at::Tensor sent = values_of(communicator.rank(), 300);
    group->broadcast(sent, 1, kUnit)->wait();
    EXPECT_TRUE(at::equal(sent, values_of(1, 300)));
    EXPECT_EQ(group->common_memory(), nullptr);
  });
}

TEST(CodedCommunicator, RoundsStochasticallyBySeedUnitAndRank) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    const auto sums = [&](uint64_t seed, const std::string& unit) {
      at::Tensor output = at::empty({500});
      coded(communicator, {.type = LinkType::kInt4, .stochastic = true, .seed = seed})
          ->reduce_scatter(output, values_of(0, 1000), {.unit = unit})
          ->wait();
      return output;
    };
    const at::Tensor first = sums(1, "a");
    EXPECT_TRUE(at::equal(first, sums(1, "a")));
    EXPECT_FALSE(at::equal(first, sums(2, "a")));
    EXPECT_FALSE(at::equal(first, sums(1, "b")));
  });
}

TEST(CodedCommunicator, AddsWhatCodesHaveLackedToTheNext) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    const auto group = coded(communicator, {.type = LinkType::kInt4, .error_feedback = true});
    const auto lossy = coded(communicator, {.type = LinkType::kInt4});
    const auto mean_error = [&](CodedCommunicator& of, int64_t numel, const auto& reduce) {
      at::Tensor sum = at::zeros({numel}, at::kDouble);
      for (int i = 0; i < 40; ++i) sum += reduce(of);
      return sum / 40;
    };
    const auto scatter = [&](CodedCommunicator& of) {
      at::Tensor output = at::empty({500});
      of.reduce_scatter(output, values_of(communicator.rank(), 1000), kUnit)->wait();
      return output;
    };
    const auto all = [&](CodedCommunicator& of) {
      at::Tensor sum = values_of(communicator.rank(), 501);
      of.all_reduce(sum, ReduceOp::kSum, {.unit = "whole"})->wait();
      return sum;
    };
    const at::Tensor exact = (values_of(0, 1000) + values_of(1, 1000)).to(at::kDouble);
    const at::Tensor own = exact.narrow(0, communicator.rank() * 500, 500);
    const auto worst = [](const at::Tensor& a, const at::Tensor& b) {
      return (a - b).abs().max().template item<double>();
    };
    EXPECT_LT(worst(mean_error(*group, 500, scatter), own), 0.01);
    EXPECT_GT(worst(mean_error(*lossy, 500, scatter), own), 0.05);
    const at::Tensor whole = (values_of(0, 501) + values_of(1, 501)).to(at::kDouble);
    EXPECT_LT(worst(mean_error(*group, 501, all), whole), 0.02);
    EXPECT_GT(worst(mean_error(*lossy, 501, all), whole), 0.05);
    EXPECT_EQ(group->errors_of_part("blocks.1", 500)->of_sums.numel(), 1000);
    EXPECT_EQ(group->errors_of_all_reduce("whole", 501)->of_result.numel(), 251);
    EXPECT_EQ(lossy->errors_of_part("blocks.1", 500), nullptr);
  });
}

TEST(CodedCommunicator, IsTracedByTheBytesOfItsLinks) {
  run_ranks_as_threads(2, [&](Communicator& communicator) {
    const auto trace = std::make_shared<Trace>();
    const auto traced = make_tracing_communicator(testing::borrowed(communicator), trace);
    const auto group = coded(*traced, {.type = LinkType::kInt4});
    at::Tensor whole = at::zeros({1400}), part = at::zeros({700}), all = at::zeros({333});
    group->all_gather(whole, part, kUnit)->wait();
    group->reduce_scatter(part, whole, kUnit)->wait();
    group->all_reduce(all, ReduceOp::kSum, kUnit)->wait();
    const auto events = trace->events(0);
    ASSERT_EQ(events.size(), 3U);
    EXPECT_EQ(events[0].bytes, link_bytes(LinkType::kInt4, 700, 4));
    EXPECT_EQ(events[1].bytes, link_bytes(LinkType::kInt4, 700, 4));
    EXPECT_EQ(events[2].bytes, 2 * link_bytes(LinkType::kInt4, 167, 4));
    EXPECT_EQ(group->link_bytes_of_part(part), events[0].bytes);
    EXPECT_EQ(group->link_bytes_of_all_reduce(all), events[2].bytes);
    EXPECT_EQ(communicator.link_bytes_of_part(part), 2800);
  });
}

TEST(CodedCommunicator, IsCountedWithoutOtherRanks) {
  FakeCommunicator fake(4);
  const auto group = coded(fake, {.type = LinkType::kInt8, .error_feedback = true});
  at::Tensor whole = at::ones({400}), part = at::ones({100});
  group->all_gather(whole, part, kUnit)->wait();
  group->reduce_scatter(part, whole, kUnit)->wait();
  EXPECT_EQ(group->link_bytes_of_part(part), 102);
  EXPECT_TRUE(part.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace fsdp::comm
