#include "base/util/system.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "support/temporary_folder.h"

namespace fsdp::util {
namespace {

TEST(SystemFiles, GiveTheValueOfTheFirstLineOfAName) {
  testing::TemporaryFolder folder;
  const auto file = folder.write(
      "cpuinfo", "model\t\t: 1\nmodel name\t: A: B\nempty:\nmodel name\t: C\nMemTotal:   12 kB\n");
  EXPECT_EQ(line_value(file, "model name"), "A: B");
  EXPECT_EQ(line_value(file, "model"), "1");
  EXPECT_EQ(line_value(file, "empty"), "");
  EXPECT_EQ(line_value(file, "mode"), std::nullopt);
  EXPECT_EQ(kilobytes(file, "MemTotal"), 12 * 1024);
  EXPECT_EQ(kilobytes(file, "model name"), std::nullopt) << "no number";
  EXPECT_EQ(line_value(folder / "missing", "model"), std::nullopt);
}

TEST(HostName, IsTheKernels) {
  utsname names{};
  ASSERT_EQ(::uname(&names), 0);
  EXPECT_EQ(host_name(), *names.nodename ? std::string(names.nodename) : "this machine");
}

std::optional<int> quota_with(const std::map<std::string, std::string>& files) {
  testing::TemporaryFolder root;
  for (const auto& [path, text] : files) {
    std::filesystem::create_directories((root.path() / path).parent_path());
    root.write(path, text);
  }
  return cpu_quota(root.path());
}

TEST(CpuQuota, IsThatOfControlGroupsOfBothVersions) {
  EXPECT_EQ(quota_with({}), std::nullopt);
  EXPECT_EQ(quota_with({{"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}}),
            std::nullopt);
  EXPECT_EQ(quota_with({{"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/cpu.max", "350000 100000\n"}}),
            3);
  EXPECT_EQ(quota_with({{"proc/self/cgroup", "0::/a/b\n"},
                        {"sys/fs/cgroup/a/cpu.max", "50000 100000\n"},
                        {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}}),
            1)
      << "of the group around it, at least one";
  EXPECT_EQ(
      quota_with({{"proc/self/cgroup", "0::/docker/7\n"}, {"sys/fs/cgroup/cpu.max", "200000 100000\n"}}), 2)
      << "a container may see its own group as the outermost one";
  const std::string v1 = "12:memory:/a\n4:cpu,cpuacct:/a\n";
  EXPECT_EQ(quota_with({{"proc/self/cgroup", v1},
                        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "400000\n"},
                        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}}),
            4);
  EXPECT_EQ(quota_with({{"proc/self/cgroup", v1},
                        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"},
                        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}}),
            std::nullopt);
}

TEST(RandomId, IsAnotherEachTime) {
  EXPECT_EQ(random_id().size(), 16u);
  EXPECT_NE(random_id(), random_id());
}

TEST(ProcessMemory, ThePeakStaysWhenMemoryIsGivenBack) {
  constexpr size_t kBytes = 64 << 20;
  int64_t before = resident_bytes();
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  int64_t during = resident_bytes();
  munmap(memory, kBytes);
  constexpr int64_t kSlack = 8 << 20;  // other threads, the kernel's lazy counters
  EXPECT_GE(during, before + static_cast<int64_t>(kBytes) - kSlack);
  EXPECT_GE(peak_resident_bytes(), during - kSlack);
  EXPECT_LT(resident_bytes(), during - static_cast<int64_t>(kBytes) / 2);
}

}  // namespace
}  // namespace fsdp::util
