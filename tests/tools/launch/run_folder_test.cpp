#include "tools/launch/run_folder.h"

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

TEST(RunFolder, GoesUnlessItIsKept) {
  testing::TemporaryFolder parent;
  {
    const RunFolder gone(parent.path(), "a/b", false), kept(parent.path(), "a/b", true);
    EXPECT_TRUE(std::filesystem::is_directory(gone.of_worker(1, 2)));
    EXPECT_EQ(gone.of_worker(1, 2), gone.path() / "attempt_1" / "2");
    EXPECT_EQ(parent.entries(), 2);
  }
  EXPECT_EQ(parent.entries(), 1);
}

TEST(RunFolder, NamesAFolderThatCannotBe) {
  EXPECT_THROW(RunFolder("/dev/null/logs", "x", true), util::Error);
}

TEST(ErrorFile, IsReadInBothOfItsForms) {
  testing::TemporaryFolder folder;
  EXPECT_EQ(read_error_file(folder.write("a", R"({"message": {"message": "nested"}})")), "nested");
  EXPECT_EQ(read_error_file(folder.write("b", R"({"message": "plain"})")), "plain");
}

TEST(ErrorFile, SaysNothingWhenItIsNotThereOrTorn) {
  testing::TemporaryFolder folder;
  EXPECT_EQ(read_error_file(folder / "missing"), "");
  for (const char* text : {"", "{", "[]", "{}", R"({"message": 7})", R"({"message": {"message": []}})"}) {
    EXPECT_EQ(read_error_file(folder.write("torn", text)), "") << text;
  }
}

}  // namespace
}  // namespace fsdp::launch
