#include "util/system.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cstring>

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
  EXPECT_EQ(first_line(file), "model\t\t: 1");
  EXPECT_EQ(first_line(folder / "missing"), std::nullopt);
  EXPECT_EQ(line_value(folder / "missing", "model"), std::nullopt);
}

TEST(HostName, IsTheKernels) {
  utsname names{};
  ASSERT_EQ(::uname(&names), 0);
  EXPECT_EQ(host_name(), *names.nodename ? std::string(names.nodename) : "this machine");
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
