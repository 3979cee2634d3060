#include "data/tokens/output_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/util/error.h"
#include "support/temporary_folder.h"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;

int files_in(const fs::path& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

TEST(OutputFile, RemovesWhatKilledProcessesHaveLeftUnderItsName) {
  testing::TemporaryFolder folder;
  folder.write("out.bin.tmp-12345", "left");
  folder.write("out.bin.tmp-12345x", "another's");
  folder.write("out.bin2.tmp-12345", "of another file");
  OutputFile file(folder.path() / "out.bin");
  EXPECT_FALSE(fs::exists(folder.path() / "out.bin.tmp-12345"));
  EXPECT_EQ(files_in(folder.path()), 3);
}

TEST(OutputFile, LeavesTheTemporaryFileOfALivingProcessAlone) {
  testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "out.bin";
  OutputFile first(path);
  first.append("first", 5);
  first.finish();
  // As a process with another number would find it.
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    fs::create_hard_link(entry.path(), folder.path() / "out.bin.tmp-999999999");
    break;
  }
  EXPECT_THROW(OutputFile second(path), util::Error) << "the same name in the same process";
  EXPECT_TRUE(fs::exists(folder.path() / "out.bin.tmp-999999999")) << "its file is locked";
  first.commit();
  EXPECT_EQ(folder.read("out.bin"), "first");
}

TEST(OutputFile, DoesNotWriteThroughALinkInThePlaceOfItsTemporaryFile) {
  testing::TemporaryFolder folder;
  const fs::path victim = folder.write("victim", "precious");
  fs::create_symlink(victim, folder.path() / ("out.bin.tmp-" + std::to_string(::getpid())));
  EXPECT_THROW(OutputFile(folder.path() / "out.bin").append("x", 1), util::Error);
  EXPECT_EQ(folder.read("victim"), "precious");
}

}  // namespace
}  // namespace fsdp::data
