#include "state/outer/exchange.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "comm/threads/thread_communicator.h"
#include "support/sharded_run.h"

namespace fsdp::optim {
namespace {

/// The numbers of a replica, of different magnitudes.
at::Tensor numbers_of(int replica, int64_t n) {
  at::Tensor x = at::arange(n, at::kFloat);
  return at::sin(x * (0.37 + 0.11 * replica)) * at::exp(at::cos(x * 0.013) * 4);
}

/// The mean that each replica gets.
std::vector<at::Tensor> exchanged(int replicas, int64_t n, ExchangeType type) {
  std::vector<at::Tensor> means(static_cast<size_t>(replicas));
  comm::run_ranks_as_threads(replicas, [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    Exchange exchange(numbers_of(rank, n), type, testing::borrowed(communicator), /*seed=*/7,
                      {.unit = "test"});
    exchange.wait();
    means[static_cast<size_t>(rank)] = exchange.mean(replicas);
  });
  return means;
}

at::Tensor mean_of(int replicas, int64_t n) {
  at::Tensor sum = at::zeros({n}, at::kDouble);
  for (int replica = 0; replica < replicas; ++replica) sum += numbers_of(replica, n);
  return sum / replicas;
}

TEST(Exchange, GivesAllReplicasTheSameMean) {
  for (const int64_t n : {int64_t{1}, int64_t{1000}, Exchange::kPiece + 300}) {
    const int replicas = n > 1000 ? 2 : 3;
    const at::Tensor expected = mean_of(replicas, n);
    for (const auto& [type, error] :
         {std::pair{ExchangeType::kFloat32, 1e-6}, {ExchangeType::kBFloat16, 1.0 / 128}}) {
      const auto means = exchanged(replicas, n, type);
      for (const at::Tensor& mean : means) EXPECT_TRUE(mean.equal(means[0]));
      const double largest = at::exp(at::ones({}) * 4).item<double>();
      EXPECT_LT((means[0].to(at::kDouble) - expected).abs().max().item<double>(), error * largest)
          << n << util::name_of(type);
    }
  }
}

TEST(Exchange, OfCodesIsAsExactAsTheirBlocks) {
  for (const auto& [type, levels] : {std::pair{ExchangeType::kInt8, 127.0}, {ExchangeType::kInt4, 7.0}}) {
    for (const int64_t n : {int64_t{1}, int64_t{1000}, Exchange::kPiece + 300}) {
      const int replicas = n > 1000 ? 2 : 3;
      const auto means = exchanged(replicas, n, type);
      for (const at::Tensor& mean : means) EXPECT_TRUE(mean.equal(means[0]));
      const at::Tensor expected = mean_of(replicas, n);
      double largest = 0;
      for (int replica = 0; replica < replicas; ++replica) {
        largest = std::max(largest, numbers_of(replica, n).abs().max().item<double>());
      }
      // A replica's number and the sum are rounded once each, and scales by one part in 128.
      const at::Tensor error = (means[0].to(at::kDouble) - expected).abs();
      EXPECT_LE(error.max().item<double>(), 2.02 * largest / levels) << n;
      EXPECT_LE(error.norm().item<double>(), 4 / levels * expected.norm().item<double>() + 0.02 * largest)
          << n;
    }
  }
}

TEST(Exchange, DividesByTheReplicasThatContribute) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    at::Tensor numbers = communicator.rank() == 0 ? numbers_of(0, 300) : at::zeros({300});
    Exchange exchange(numbers, ExchangeType::kFloat32, testing::borrowed(communicator), /*seed=*/7,
                      {.unit = "test"});
    exchange.wait();
    EXPECT_TRUE(exchange.mean(1).equal(numbers_of(0, 300)));
  });
}

TEST(Exchange, OfOneReplicaChangesNothing) {
  EXPECT_TRUE(exchanged(1, 500, ExchangeType::kInt8)[0].equal(numbers_of(0, 500)));
}

TEST(Exchange, CountsItsBytes) {
  EXPECT_EQ(Exchange::payload_bytes(512, ExchangeType::kFloat32, 2), 2048);
  EXPECT_EQ(Exchange::payload_bytes(512, ExchangeType::kBFloat16, 2), 1024);
  EXPECT_EQ(Exchange::payload_bytes(512, ExchangeType::kInt8, 2), 512 + 2 * 2);
}

}  // namespace
}  // namespace fsdp::optim
