#include "data/tokens/token_files.h"

#include <sys/stat.h>

#include <filesystem>

#include "base/util/system.h"
#include "data/token_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

TEST(TokenFiles, ReadsSeveralFilesAsIfTheyWereJoined) {
  TemporaryFolder folder;
  TokenFiles files({write_tokens(folder, "a", {1, 2, 3}), write_tokens(folder, "b", {4}),
                    write_tokens(folder, "c", {5, 65535})});
  ASSERT_EQ(files.size(), 6);
  EXPECT_EQ(files.file(1).size(), 1);
  const std::vector<int64_t> all = {1, 2, 3, 4, 5, 65535};
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t end = begin; end <= 6; ++end) {
      std::vector<int64_t> out(static_cast<size_t>(end - begin));
      files.read(begin, end - begin, out.data());
      EXPECT_EQ(out, std::vector<int64_t>(all.begin() + begin, all.begin() + end));
    }
  }
}

TEST(TokenFiles, ReadsLittleEndian) {
  TemporaryFolder folder;
  TokenFiles files({folder.write("a", std::string("\x34\x12", 2))});
  int64_t token = 0;
  files.read(0, 1, &token);
  EXPECT_EQ(token, 0x1234);
}

TEST(TokenFiles, LocatesEveryPosition) {
  TemporaryFolder folder;
  std::string a = write_tokens(folder, "a", {1, 2, 3}), b = write_tokens(folder, "b", {4, 5});
  TokenFiles files({a, b});
  EXPECT_EQ(files.locate(0).path, a);
  EXPECT_EQ(files.locate(2).token, 2);
  EXPECT_EQ(files.locate(3).path, b);
  EXPECT_EQ(files.locate(3).token, 0);
  EXPECT_EQ(files.locate(4).token, 1);
}

TEST(TokenFiles, ReadsReleasedTokensAgain) {
  TemporaryFolder folder;
  TokenFiles files({write_tokens(folder, "a", counting(20'000)), write_tokens(folder, "b", counting(3000))});
  std::vector<int64_t> before(23'000), after(23'000);
  files.read(0, 23'000, before.data());
  files.release(0, 23'000);
  files.release(5000, 15'001);
  files.read(0, 23'000, after.data());
  EXPECT_EQ(after, before);
}

TEST(TokenFiles, RefusesReadingPastTheEnd) {
  TemporaryFolder folder;
  TokenFiles files({write_tokens(folder, "a", {1, 2, 3})});
  int64_t out[4];
  EXPECT_THROW(files.read(0, 4, out), util::Error);
  EXPECT_THROW(files.read(-1, 1, out), util::Error);
  EXPECT_THROW(files.read(INT64_MAX, 1, out), util::Error);
}

TEST(TokenFiles, RefusesAMissingFile) {
  TemporaryFolder folder;
  expect_error(ErrorKind::kData, {folder / "none", "No such file", "; "},
               [&] { TokenFiles({folder / "none"}); });
}

TEST(TokenFiles, RefusesAFolder) {
  TemporaryFolder folder;
  expect_error(ErrorKind::kData, {folder.path(), "is a folder"}, [&] { TokenFiles({folder.path()}); });
}

TEST(TokenFiles, RefusesAPipeWithoutWaitingForAWriter) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::kData, {"not a regular file"}, [&] { TokenFiles({folder / "pipe"}); });
}

TEST(TokenFiles, RefusesAnEmptyFile) {
  TemporaryFolder folder;
  expect_error(ErrorKind::kData, {"is empty"}, [&] { TokenFiles({folder.write("a", "")}); });
}

TEST(TokenFiles, RefusesAnOddNumberOfBytes) {
  TemporaryFolder folder;
  expect_error(ErrorKind::kData, {folder / "a", "odd number of bytes (3)", "fsdp-data tokenize"},
               [&] { TokenFiles({folder.write("a", "abc")}); });
}

TEST(TokenFiles, NamesTheFileThatCannotBeUsedAmongSeveral) {
  TemporaryFolder folder;
  std::string good = write_tokens(folder, "good", {1});
  expect_error(ErrorKind::kData, {folder / "bad"}, [&] { TokenFiles({good, folder.write("bad", "x")}); });
}

TEST(TokenFiles, ReportsATruncationInsteadOfDyingOfIt) {
  TemporaryFolder folder;
  std::string path = write_tokens(folder, "a", counting(10000));
  TokenFiles files({path});
  std::filesystem::resize_file(path, 200);
  int64_t token = 0;
  files.read(99, 1, &token);
  EXPECT_EQ(token, 99);
  expect_error(ErrorKind::kData, {path, "10000", "now has 100"}, [&] { files.read(9999, 1, &token); });
}

TEST(CheckAllIds, NamesFileAndPositionOfTheFirstBadId) {
  TemporaryFolder folder;
  // More than one chunk of the scan, and in the second file.
  std::vector<uint16_t> first(600'000, 7), second(600'000, 9);
  second[550'000] = 10;
  second[550'001] = 999;
  std::string a = write_tokens(folder, "a", first), b = write_tokens(folder, "b", second);
  TokenFiles files({a, b});
  check_all_ids(files, 1000);
  check_all_ids(files, 65536);
  expect_error(ErrorKind::kData, {"token 550000 of " + b, "the id 10", "vocab_size = 10", "at least 11"},
               [&] { check_all_ids(files, 10); });
}

TEST(CheckAllIds, DoesNotCountTheFilesIntoResidentMemory) {
  TemporaryFolder folder;
  // A sparse file: 128 MiB of zeros that take no room on the disk.
  std::string path = folder.write("a", "");
  std::filesystem::resize_file(path, 128 << 20);
  TokenFiles files({path});
  EXPECT_LT(fsdp::testing::rise_of_resident_memory([&] { check_all_ids(files, 1); }), 32 << 20);
}

}  // namespace
}  // namespace fsdp::data
