#include "data/tokens/data_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"
#include "support/token_file.h"

namespace fsdp::data {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::write_token_file;
namespace fs = std::filesystem;

void change_token(const fs::path& path, int64_t token) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(token * 2);
  file.put('\x10');
}

nlohmann::json identity_of(const std::vector<std::string>& paths) { return identity_of(TokenFiles(paths)); }

TEST(DataIdentity, IsThatOfTheContentWhereverItLies) {
  TemporaryFolder folder;
  write_token_file(folder / "a.bin", 5000, 17);
  const nlohmann::json before = identity_of({folder / "a.bin"});
  fs::create_directory(folder / "moved");
  fs::rename(folder / "a.bin", folder / "moved/b.bin");
  EXPECT_EQ(difference(before, identity_of({folder / "moved/b.bin"})), std::nullopt);
  EXPECT_EQ(difference(nlohmann::json::parse(before.dump()), before), std::nullopt);
}

TEST(DataIdentity, ChangesWithEveryTokenOfASmallFile) {
  TemporaryFolder folder;
  for (int64_t token : {0, 1, 60'000, 130'999}) {
    write_token_file(folder / "a.bin", 131'000, 16);  // below 16 blocks
    const nlohmann::json before = identity_of({folder / "a.bin"});
    change_token(folder / "a.bin", token);
    const auto found = difference(before, identity_of({folder / "a.bin"}));
    ASSERT_TRUE(found.has_value()) << token;
    EXPECT_EQ(*found, "file 1, \"a.bin\", has 131000 tokens and had 131000, but different ones");
  }
}

TEST(DataIdentity, ChangesWithTheEndsOfALargeFile) {
  TemporaryFolder folder;
  for (int64_t token : {0, 8191, 999'999}) {
    write_token_file(folder / "a.bin", 1'000'000, 16);
    const nlohmann::json before = identity_of({folder / "a.bin"});
    change_token(folder / "a.bin", token);
    EXPECT_TRUE(difference(before, identity_of({folder / "a.bin"})).has_value()) << token;
  }
}

TEST(DataIdentity, NamesTheFirstFileThatIsOther) {
  TemporaryFolder folder;
  for (const char* name : {"a.bin", "b.bin"}) write_token_file(folder / name, 500, 17);
  write_token_file(folder / "c.bin", 600, 17);
  const std::string a = folder / "a.bin", b = folder / "b.bin", c = folder / "c.bin";
  const nlohmann::json before = identity_of({a, b});
  EXPECT_EQ(difference(before, identity_of({a, c})),
            "file 2, \"c.bin\", has 600 tokens, but \"b.bin\" had 500");
  EXPECT_EQ(difference(before, identity_of({a, b, c})), "file 3, \"c.bin\", is new");
  EXPECT_EQ(difference(before, identity_of({a})), "file 2, \"b.bin\", is missing");
  for (const char* text : {"null", "3", "[3]", "[{}]", "{\"a\": 1}", "[[]]"}) {
    EXPECT_TRUE(difference(nlohmann::json::parse(text), before).has_value()) << text;
  }
}

}  // namespace
}  // namespace fsdp::data
