#include "tools/simulate/collective_cost.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/util/error.h"
#include "comm/options/link_type.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {
namespace {

using comm::Backend;

/// A megabyte a second inside a host, a quarter of it between hosts.
NetworkTable slow() {
  NetworkTable network;
  network.inside = {.latency_seconds = 1e-3, .bytes_per_second = 1e6};
  network.between = {.latency_seconds = 1e-2, .bytes_per_second = 0.25e6, .core_seconds_per_byte = 1e-7};
  network.slices = {.latency_seconds = 1e-1, .bytes_per_second = 0.1e6};
  network.copy_bytes_per_second = 2e6;
  network.sum_bytes_per_second = 1e6;
  return network;
}

double seconds(CollectiveKind kind, double bytes, const RankGroup& group, Backend backend) {
  const NetworkTable network = slow();
  return seconds_alone(cost_of({.kind = kind, .bytes = bytes, .group = group}, backend, network), network, 0);
}

TEST(CollectiveCost, OfGlooIsDirectSendsButARingForAllReduces) {
  const RankGroup group{.ranks = 4, .ranks_of_host = 1};
  EXPECT_NEAR(seconds(CollectiveKind::kAllGather, 1e6, group, Backend::kGloo), 1e-2 + 3e6 / 0.25e6, 1e-9);
  EXPECT_NEAR(seconds(CollectiveKind::kReduceScatter, 1e6, group, Backend::kGloo), 1e-2 + 12 + 4, 1e-9);
  EXPECT_NEAR(seconds(CollectiveKind::kAllReduce, 1e6, group, Backend::kGloo), 6 * 1e-2 + 1.5e6 / 0.25e6,
              1e-9);
  NetworkTable network = slow();
  network.between.ring_latency_seconds = 6e-3;
  const Cost cost =
      cost_of({.kind = CollectiveKind::kAllReduce, .bytes = 1e6, .group = group}, Backend::kGloo, network);
  EXPECT_NEAR(seconds_alone(cost, network, 0), 6 * 6e-3 + 1.5e6 / 0.25e6, 1e-9) << "ready receivers";
}

TEST(CollectiveCost, TakesTimeFromTheComputeBesideIt) {
  NetworkTable network = slow();
  network.core_seconds = 0.25;
  const Cost cost =
      cost_of({.kind = CollectiveKind::kAllGather, .bytes = 1e6, .group = {.ranks = 2, .ranks_of_host = 2}},
              Backend::kShm, network);
  EXPECT_NEAR(cost[0].core_seconds, 0.25 + 0.5, 1e-9);
}

TEST(CollectiveCost, OfCodesIsTimeOfCoresBeforeBesideAndAfterTheTransfer) {
  NetworkTable network = slow();
  network.encode_bytes_per_second = 1e6;
  network.decode_bytes_per_second = 4e6;
  const double p = 4e-6 * comm::kCodedPiece;  // MB of a piece of numbers that have a MB in all
  const auto expect = [&](CollectiveKind kind, Backend backend, const RankGroup& group, double before,
                          double after, double all) {
    CollectiveCall call{.kind = kind, .bytes = 0.25e6, .group = group, .uncoded_bytes = 1e6};
    const Cost cost = cost_of(call, backend, network);
    EXPECT_NEAR(cost.front().core_seconds, before, 1e-9);
    EXPECT_NEAR(cost.back().core_seconds, after, 1e-9);
    double added = 0;
    for (const Stage& stage : cost) added += stage.core_seconds;
    network.encode_bytes_per_second = network.decode_bytes_per_second = 1e100;
    const double copies = kind == CollectiveKind::kAllGather ? 0 : 2 / 2.0;
    for (const Stage& stage : cost_of(call, backend, network)) added -= stage.core_seconds;
    network.encode_bytes_per_second = 1e6;
    network.decode_bytes_per_second = 4e6;
    EXPECT_NEAR(added + copies / (kind == CollectiveKind::kAllReduce ? group.ranks : 1), all, 1e-6);
  };
  const RankGroup four{.ranks = 4, .ranks_of_host = 1}, twos{.ranks = 4, .ranks_of_host = 2};
  expect(CollectiveKind::kAllGather, Backend::kGloo, four, p, 3 * p / 4, 1 + 4 / 4.0);
  expect(CollectiveKind::kAllGather, Backend::kMpi, four, 1, 4 / 4.0, 1 + 4 / 4.0);
  expect(CollectiveKind::kAllGather, Backend::kHierarchical, twos, p, 2 / 4.0, 1 + 4 / 4.0);
  expect(CollectiveKind::kReduceScatter, Backend::kGloo, four, 3 * p, 3 * p / 4 + 2 * p / 2,
         3 + 3 / 4.0 + 2 / 2.0);
  expect(CollectiveKind::kReduceScatter, Backend::kHierarchical, twos, p, p / 4 + 2 * p / 2,
         1 + 1 / 4.0 + 2 / 2.0);
  expect(CollectiveKind::kAllReduce, Backend::kGloo, four, 3 / 4.0, 3 / 16.0,
         4 / 4.0 + 3 / 16.0 + 2 / 8.0 + 4 / 16.0);
}

TEST(CollectiveCost, OfSharedMemoryIsTheCoresTime) {
  const NetworkTable network = slow();
  const Cost cost =
      cost_of({.kind = CollectiveKind::kAllGather, .bytes = 1e6, .group = {.ranks = 4, .ranks_of_host = 4}},
              Backend::kShm, network);
  EXPECT_NEAR(seconds_alone(cost, network, 0), 2e-3 + 0.5, 1e-9) << "the rank's own part";
  EXPECT_NEAR(seconds_alone(cost, network, 0.5), 2e-3 + 1.0, 1e-9) << "on half a core";
  EXPECT_NEAR(seconds(CollectiveKind::kReduceScatter, 1e6, {.ranks = 4, .ranks_of_host = 4}, Backend::kShm),
              2e-3 + 4, 1e-9)
      << "all ranks' parts for this one";
}

TEST(CollectiveCost, OfHierarchiesSendsOnlyToCounterparts) {
  const RankGroup group{.ranks = 4, .ranks_of_host = 2};
  const NetworkTable network = slow();
  const Cost cost = cost_of({.kind = CollectiveKind::kAllGather, .bytes = 1e6, .group = group},
                            Backend::kHierarchical, network);
  ASSERT_EQ(cost.size(), 1u);
  EXPECT_EQ(cost[0].between_bytes, 1e6) << "of one counterpart; direct sends would receive three parts";
}

TEST(CollectiveCost, OfNcclIsThatOfTheSlowerOfTheLinksForLargeTensors) {
  const double inside =
      seconds(CollectiveKind::kAllGather, 1e9, {.ranks = 8, .ranks_of_host = 8}, Backend::kNccl);
  EXPECT_NEAR(inside, 7e9 / 1e6, 1e-3 * inside);
  const double between =
      seconds(CollectiveKind::kAllGather, 1e9, {.ranks = 16, .ranks_of_host = 8}, Backend::kNccl);
  EXPECT_NEAR(between, 15e9 / 1e6, 1e-3 * between)
      << "a host's ports are eight times one: 8e9 / 8 / 0.25e6 is less";
}

TEST(CollectiveCost, OfNcclGrowsSlowlyWithTheRanksForSmallTensors) {
  const auto of = [](int ranks) {
    return seconds(CollectiveKind::kAllReduce, 16, {.ranks = ranks, .ranks_of_host = 8}, Backend::kNccl);
  };
  EXPECT_LT(of(4096), 3 * of(64)) << "a tree";
  EXPECT_GT(of(4096), of(64));
}

TEST(CollectiveCost, OfSlicesIsOnTheirLinks) {
  const NetworkTable network = slow();
  const Cost cost = cost_of({.kind = CollectiveKind::kReduceScatter,
                             .bytes = 1e6,
                             .group = {.ranks = 2, .ranks_of_host = 1, .is_between_slices = true}},
                            Backend::kNccl, network);
  ASSERT_EQ(cost.size(), 1u);
  EXPECT_EQ(cost[0].between_bytes, 0);
  EXPECT_GE(cost[0].slice_bytes, 1e6);
}

TEST(CollectiveCost, OfCodesIsTheirBytesOnTheLinks) {
  const RankGroup group{.ranks = 4, .ranks_of_host = 2};
  const NetworkTable network = slow();
  const auto cost = [&](Backend backend, double uncoded) {
    return cost_of({.kind = CollectiveKind::kReduceScatter,
                    .bytes = uncoded > 0 ? 0.25e6 : 1e6,
                    .group = group,
                    .uncoded_bytes = uncoded},
                   backend, network);
  };
  const Cost exact = cost(Backend::kHierarchical, 0), coded = cost(Backend::kHierarchical, 1e6);
  EXPECT_EQ(exact[0].between_bytes, 1e6);
  EXPECT_EQ(coded[1].between_bytes, 0.25e6);
  const double copies = 2e6 / network.copy_bytes_per_second;
  EXPECT_NEAR(coded[0].core_seconds + coded[1].core_seconds + coded.back().core_seconds - copies +
                  network.between.core_seconds_per_byte * 0.75e6,
              exact[0].core_seconds, 1e-9)
      << "ranks of a host add up exactly";
  // NCCL adds nothing inside a host first: codes go from each GPU to all others.
  EXPECT_EQ(cost(Backend::kNccl, 0)[0].between_bytes, 1e6);
  EXPECT_EQ(cost(Backend::kNccl, 1e6)[0].between_bytes, 0.5e6);
}

TEST(CollectiveCost, OfAGroupOfOneIsNothing) {
  EXPECT_TRUE(cost_of({.bytes = 1e6, .group = {}}, Backend::kNccl, slow()).empty());
}

TEST(CollectiveCost, IsKnownForEveryBackendThatARunUses) {
  const CollectiveCall call{.bytes = 1e6, .group = {.ranks = 4, .ranks_of_host = 2}};
  for (const comm::BackendRow& row : comm::backends()) {
    if (row.backend == Backend::kAuto) {
      EXPECT_THROW(cost_of(call, row.backend, slow()), util::Error);
    } else {
      EXPECT_FALSE(cost_of(call, row.backend, slow()).empty()) << row.name;
    }
  }
}

double from_other_hosts(CollectiveKind kind, double bytes, const RankGroup& group, Backend backend) {
  return bytes_from_other_hosts({.kind = kind, .bytes = bytes, .group = group}, backend);
}

TEST(BytesFromOtherHosts, AreThoseOfOtherRanksWhereEachHostHasOne) {
  const RankGroup group{.ranks = 4, .ranks_of_host = 1};
  for (const Backend backend : {Backend::kGloo, Backend::kMpi, Backend::kHierarchical, Backend::kNccl}) {
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kAllGather, 1e6, group, backend), 3e6);
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kReduceScatter, 1e6, group, backend), 3e6);
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kAllReduce, 1e6, group, backend), 1.5e6);
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kExchange, 1e6, group, backend), 1e6);
  }
}

TEST(BytesFromOtherHosts, CrossTheNetworkOncePerHostInHierarchies) {
  const RankGroup group{.ranks = 8, .ranks_of_host = 4};
  EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kAllGather, 1e6, group, Backend::kGloo), 4e6);
  EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kReduceScatter, 1e6, group, Backend::kMpi), 4e6);
  for (const Backend backend : {Backend::kHierarchical, Backend::kHierarchicalMpi, Backend::kNccl}) {
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kAllGather, 1e6, group, backend), 1e6);
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kReduceScatter, 1e6, group, backend), 1e6);
    EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kAllReduce, 1e6, group, backend), 0.25e6);
  }
  EXPECT_DOUBLE_EQ(from_other_hosts(CollectiveKind::kAllReduce, 1e6, group, Backend::kGloo), 1.75e6 / 4)
      << "one of four ranks has its neighbour in the ring on the other host";
}

TEST(BytesFromOtherHosts, AreNoneOnOneHost) {
  const RankGroup group{.ranks = 4, .ranks_of_host = 4};
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllReduce, CollectiveKind::kExchange}) {
    EXPECT_EQ(from_other_hosts(kind, 1e6, group, Backend::kGloo), 0);
    EXPECT_EQ(from_other_hosts(kind, 1e6, group, Backend::kNccl), 0);
  }
}

TEST(Networks, HaveTheirRateInTheirName) {
  for (const NetworkPreset& preset : network_presets()) {
    const std::string name(preset.name);
    EXPECT_DOUBLE_EQ(std::stod(name.substr(name.find('-') + 1)), preset.gbps) << name;
    EXPECT_FALSE(preset.source.empty());
  }
  EXPECT_THROW(network_preset("ib-40"), util::Error);
  EXPECT_EQ(network_preset("tcp-10").gbps_of_rank(4), 10) << "each rank has a port";
  EXPECT_EQ(network_preset("lan-1").gbps_of_rank(4), 0.25);
  EXPECT_EQ(network_preset("lan-1").gbps_of_rank(0), 1);
}

}  // namespace
}  // namespace fsdp::simulate
