#include "data/texts/tar_rows.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "data/compressed_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

std::string padded(std::string content) {
  content.resize((content.size() + 511) / 512 * 512, '\0');
  return content;
}

/// A member of a tar file in the format ustar.
std::string member(const std::string& path, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  char octal[16];
  const auto number = [&](size_t value) {
    std::snprintf(octal, sizeof octal, "%011zo", value);
    return std::string(octal);
  };
  put(0, path.substr(0, 100));
  put(100, "0000644");
  put(124, number(content.size()));
  header[156] = type;
  put(257, "ustar");
  put(263, "00");
  put(148, "        ");
  size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(octal, sizeof octal, "%06zo", sum);
  put(148, std::string(octal) + '\0' + ' ');
  return header + padded(content);
}

const std::string kTarEnd(1024, '\0');

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header + data;
}

std::vector<std::string> samples_of(const std::string& path, const std::vector<std::string>& columns) {
  const auto rows = open_rows(path, columns);
  std::vector<std::string> found;
  for (std::string row; rows->next(row) != 0; row.clear()) {
    EXPECT_EQ(rows->place().unit, std::string("sample"));
    found.push_back(row);
  }
  return found;
}

std::string error_of(const std::string& path, const std::vector<std::string>& columns = {"text"}) {
  try {
    samples_of(path, columns);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.what();
  }
  return "no error";
}

using FoundMembers = std::vector<std::string>;

TEST(TarRows, JoinsTheMembersOfASample) {
  const TemporaryFolder folder;
  const std::string archive = member("d/", "", '5') + member("d/a.txt", "One \"1\"\n") +
                              member("d/a.cls", "3") + member("d/b.json", R"({"text": "Two", "n": 2})") +
                              member("d/b.jpg", "\xff\xd8") + member("d/.hidden", "x") +
                              member("README", "x") + member("e/b.TXT", "Three") + kTarEnd;
  const FoundMembers texts = {R"({"text":"One \"1\"\u000a"})", R"({"text":"Two"})", R"({"text":"Three"})"};
  EXPECT_EQ(samples_of(folder.write("a.tar", archive), {"text"}), texts);
  EXPECT_EQ(samples_of(folder.write("a.tar.gz", gzip(archive)), {"text"}), texts);
  EXPECT_EQ(samples_of(folder.write("a.tgz", gzip(archive)), {"text"}), texts);
  EXPECT_EQ(samples_of(folder.write("a.tar.zst", zstd(archive)), {"text"}), texts);
  EXPECT_EQ(samples_of(folder / "a.tar", {"n", "cls"}),
            (FoundMembers{R"({"cls":"3"})", R"({"n":2})", R"({"txt":null})"}));
}

TEST(TarRows, ReadsArraysOfNumpyAsTokens) {
  const TemporaryFolder folder;
  const std::string data("\x01\x00\xff\xff", 4);
  const std::string archive =
      member("a.npy", npy("<u2", "2,", data)) +
      member("b.tokens.npy", npy("<i4", "1,", data.substr(0, 2) + std::string(2, '\0'))) +
      member("c.tokens.npy", npy("|u1", "4,", data)) + kTarEnd;
  EXPECT_EQ(samples_of(folder.write("a.tar", archive), {"tokens"}),
            (FoundMembers{R"({"tokens":[1,65535]})", R"({"tokens":[1]})", R"({"tokens":[1,0,255,255]})"}));
  for (const std::string& wrong : {npy("<f4", "1,", data), npy("<u2", "1, 2", data), npy("<u2", "", data),
                                   std::string("no array at all"), npy("<u2", "2,", data).substr(0, 40)}) {
    const std::string path = folder.write("wrong.tar", member("a.npy", wrong) + kTarEnd);
    EXPECT_NE(error_of(path, {"tokens"}).find("the text " + path + " has in a.npy "), std::string::npos)
        << error_of(path, {"tokens"});
  }
}

TEST(TarRows, ReadsLongNames) {
  const TemporaryFolder folder;
  const std::string key(150, 'k'), name = key + ".txt";
  const std::string record = "path=" + name + "\n";
  const std::string length = std::to_string(record.size() + 4);
  const std::string archive = member("././@LongLink", name + '\0', 'L') + member(name, "gnu") +
                              member("PaxHeader", length + " " + record, 'x') + member("short", "pax") +
                              kTarEnd;
  EXPECT_EQ(samples_of(folder.write("a.tar", archive), {"text"}), (FoundMembers{R"({"text":"pax"})"}))
      << "members with one key are one sample";
  EXPECT_EQ(samples_of(folder.write("b.tar", member("././@LongLink", name + '\0', 'L') + member(name, "gnu") +
                                                 kTarEnd),
                       {"text"}),
            (FoundMembers{R"({"text":"gnu"})"}));
}

TEST(TarRows, RefusesArchivesThatAreDamagedOrCutShort) {
  const TemporaryFolder folder;
  const std::string archive = member("a.txt", std::string(700, 'a')) + member("b.txt", "b") + kTarEnd;
  const auto error = [&](const std::string& content) {
    const std::string path = folder.write("a.tar", content), message = error_of(path);
    return message.substr(std::min(message.size(), path.size() + 10));
  };
  EXPECT_EQ(error(archive), "");
  EXPECT_EQ(error(archive.substr(0, 1000)),
            "is cut short: a member of the archive is not complete; fetch it again");
  EXPECT_EQ(error(archive.substr(0, 1536)), "is cut short: the archive has no end; fetch it again");
  EXPECT_EQ(error(archive.substr(0, 1600)),
            "is cut short: a member of the archive is not complete; fetch it again");
  EXPECT_EQ(error(std::string(2000, 'x')),
            "is damaged or not a tar archive; fetch it again, or correct its name");
  std::string changed = archive;
  changed[3] = 'X';
  EXPECT_EQ(error(changed), "is damaged or not a tar archive; fetch it again, or correct its name");
  std::string negative = member("a.txt", "a");
  negative.replace(124, 12, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_EQ(error(negative + kTarEnd),
            "is damaged or not a tar archive; fetch it again, or correct its name");
}

TEST(TarRows, GoesOnAfterASample) {
  const TemporaryFolder folder;
  std::string archive;
  for (int i = 0; i < 5; ++i)
    archive += member("s" + std::to_string(i) + ".txt", "text " + std::to_string(i));
  const std::string path = folder.write("a.tar", archive + kTarEnd);
  const auto rows = open_rows(path, {"text"});
  rows->skip_to(3, -1);
  std::string row;
  EXPECT_EQ(rows->next(row), 4);
  EXPECT_EQ(row, R"({"text":"text 3"})");
}

}  // namespace
}  // namespace fsdp::data
