#include "util/system_files.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fsdp::util
