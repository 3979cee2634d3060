#include "tools/launch/node_hardware.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/util/error.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

using Cpus = std::vector<std::vector<int>>;

/// Two sockets of two NUMA nodes each; a node has two cores of two CPUs, each core its own L3 cache.
std::vector<LogicalCpu> sixteen_cpus() {
  std::vector<LogicalCpu> cpus;
  for (int id = 0; id < 16; ++id) {
    cpus.push_back(
        {.id = id, .numa_node = id / 4, .socket = id / 8, .core = id / 2 * 2, .core_complex = id / 2 * 2});
  }
  return cpus;
}

TEST(AvailableCores, AreNoMoreThanTheQuotaOfTheControlGroup) {
  testing::TemporaryFolder root;
  EXPECT_GE(available_cores(root.path()), 1);
  std::filesystem::create_directories(root.path() / "proc/self");
  std::filesystem::create_directories(root.path() / "sys/fs/cgroup");
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(available_cores(root.path()), 1);
}

TEST(CpuBinding, BindsNobodyUnlessAsked) {
  EXPECT_EQ(bind_workers(NumaBinding::kNone, sixteen_cpus(), {}, 2), (Cpus{{}, {}}));
}

TEST(CpuBinding, DealsWorkersOutToNumaNodesInBlocks) {
  EXPECT_EQ(bind_workers(NumaBinding::kNode, sixteen_cpus(), {}, 2), (Cpus{{0, 1, 2, 3}, {8, 9, 10, 11}}));
  const Cpus eight = bind_workers(NumaBinding::kNode, sixteen_cpus(), {}, 8);
  EXPECT_EQ(eight[0], eight[1]);
  EXPECT_EQ(eight[7], (std::vector<int>{12, 13, 14, 15}));
}

TEST(CpuBinding, FollowsTheGpus) {
  EXPECT_EQ(bind_workers(NumaBinding::kNode, sixteen_cpus(), {3, -1}, 2),
            (Cpus{{12, 13, 14, 15}, {8, 9, 10, 11}}));
}

TEST(CpuBinding, WidensToTheSocket) {
  EXPECT_EQ(bind_workers(NumaBinding::kSocket, sixteen_cpus(), {1}, 1), (Cpus{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(CpuBinding, GivesEachWorkerACoreComplexInTurn) {
  EXPECT_EQ(bind_workers(NumaBinding::kCoreComplex, sixteen_cpus(), {0, 0, 0}, 3),
            (Cpus{{0, 1}, {2, 3}, {0, 1}}));
}

TEST(CpuBinding, SharesTheCoresOfANodeWithoutOverlap) {
  EXPECT_EQ(bind_workers(NumaBinding::kExclusive, sixteen_cpus(), {1, 1, 2}, 3),
            (Cpus{{4, 5}, {6, 7}, {8, 9, 10, 11}}));
  EXPECT_THROW(bind_workers(NumaBinding::kExclusive, sixteen_cpus(), {1, 1, 1}, 3), util::Error);
}

TEST(CpuBinding, ReadsWhatTheKernelShows) {
  testing::TemporaryFolder folder;
  const auto cpu = folder.path() / "devices/system/cpu/cpu0";
  for (const char* name : {"topology", "cache/index3", "node1"})
    std::filesystem::create_directories(cpu / name);
  std::ofstream(cpu / "topology/thread_siblings_list") << "0,8\n";
  std::ofstream(cpu / "topology/physical_package_id") << "1\n";
  std::ofstream(cpu / "cache/index3/shared_cpu_list") << "0-3,8-11\n";
  const auto cpus = read_cpus(folder.path());
  if (cpus.empty()) GTEST_SKIP() << "this process may not use CPU 0";
  ASSERT_EQ(cpus.size(), 1u);
  EXPECT_EQ(cpus[0].numa_node, 1);
  EXPECT_EQ(cpus[0].socket, 1);
  EXPECT_EQ(cpus[0].core, 0);
  EXPECT_EQ(cpus[0].core_complex, 0);
}

}  // namespace
}  // namespace fsdp::launch
