#include "data/tokens/token_writer.h"

#include "data/token_fixtures.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

TEST(TokenWriter, TheFileAppearsOnlyWithTheCommit) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "a");
  writer.append({1, 65535});
  writer.append({2});
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  writer.commit();
  EXPECT_EQ(writer.size(), 3);
  EXPECT_EQ(folder.read("a"), std::string("\x01\x00\xff\xff\x02\x00", 6));
  EXPECT_EQ(folder.entries(), 1);
}

TEST(TokenWriter, AbandonedLeavesTheOlderFileAsItWas) {
  TemporaryFolder folder;
  folder.write("a", "old");
  {
    TokenWriter writer(folder / "a");
    writer.append({1, 2});
  }
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(TokenWriter, MakesTheFolder) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "x/y/a");
  writer.append({1});
  writer.finish();
  writer.commit();
  EXPECT_EQ(TokenFiles({folder / "x/y/a"}).size(), 1);
}

TEST(TokenWriter, NamesAFileThatIsInTheWayOfTheFolder) {
  TemporaryFolder folder;
  folder.write("x", "");
  expect_error(ErrorKind::kIo, {folder / "x"}, [&] { TokenWriter writer(folder / "x/a"); });
}

TEST(TokenWriter, RefusesIdsThatDoNotFit) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "a");
  EXPECT_THROW(writer.append({65536}), util::Error);
  EXPECT_THROW(writer.append({-1}), util::Error);
}

}  // namespace
}  // namespace fsdp::data
