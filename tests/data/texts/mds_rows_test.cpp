#include "data/texts/mds_rows.h"

#include <gtest/gtest.h>

#include "data/compressed_fixtures.h"
#include "data/texts/text_input.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;
using ListedShards = std::vector<std::string>;

std::string number(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

/// A shard of columns in the order of their names. Sizes are of encodings; -1: in each sample.
std::string shard(const nlohmann::json& config, const std::vector<std::string>& samples) {
  const std::string header = config.dump();
  uint32_t offset = static_cast<uint32_t>(4 + 4 * (samples.size() + 1) + header.size());
  std::string bytes = number(static_cast<uint32_t>(samples.size())) + number(offset), content;
  for (const std::string& sample : samples) {
    offset += static_cast<uint32_t>(sample.size());
    bytes += number(offset);
    content += sample;
  }
  return bytes + header + content;
}

nlohmann::json config_of(const ListedShards& names, const ListedShards& encodings,
                         const nlohmann::json& sizes) {
  return {
      {"column_names", names}, {"column_encodings", encodings}, {"column_sizes", sizes}, {"format", "mds"}};
}

const std::string kNumbers("\x01\x00\xff\xff", 4);

ListedShards rows_of_shard(const std::string& path, const ListedShards& columns) {
  const auto rows = open_rows(path, columns);
  ListedShards found;
  for (std::string row; rows->next(row) != 0; row.clear()) found.push_back(row);
  return found;
}

std::string shard_error(const std::string& path, const ListedShards& columns = {"text"}) {
  try {
    rows_of_shard(path, columns);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    const std::string message = error.what();
    return message.substr(std::min(message.size(), path.size() + 10));
  }
  return "no error";
}

TEST(MdsRows, ReadsTheColumnsOfEachSample) {
  const TemporaryFolder folder;
  const nlohmann::json config =
      config_of({"f", "text", "z"}, {"float64", "str", "str"}, {8, nullptr, nullptr});
  const std::string bytes = shard(config, {number(5) + number(1) + "12345678" + "Hello" + "x",
                                           number(1) + number(0) + "12345678" + "\""});
  const ListedShards expected = {R"({"text":"Hello"})", R"({"text":"\""})"};
  EXPECT_EQ(rows_of_shard(folder.write("a.mds", bytes), {"text"}), expected);
  EXPECT_EQ(rows_of_shard(folder.write("a.mds.zstd", zstd(bytes)), {"text"}), expected);
  EXPECT_EQ(rows_of_shard(folder.write("a.mds.gz", gzip(bytes)), {"text"}), expected);
  EXPECT_EQ(rows_of_shard(folder / "a.mds", {"text", "z"})[0], R"({"text":"Hello","z":"x"})");
  EXPECT_EQ(shard_error(folder / "a.mds", {"tokens"}),
            "has no column \"tokens\", but f, text, z; set the column with `json_field`");
  EXPECT_EQ(shard_error(folder / "a.mds", {"f"}).substr(0, 47),
            "has the encoding float64 in the column \"f\", and");
}

TEST(MdsRows, ReadsTokens) {
  const TemporaryFolder folder;
  const auto tokens = [&](const std::string& encoding, const std::string& value,
                          const nlohmann::json& size = nullptr) {
    const std::string sample = (size.is_null() ? number(static_cast<uint32_t>(value.size())) : "") + value;
    return rows_of_shard(
               folder.write("a.mds", shard(config_of({"tokens"}, {encoding}, nlohmann::json::array({size})),
                                           {sample})),
               {"tokens"})
        .at(0);
  };
  const std::string eight = std::string("\x02\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(tokens("bytes", eight), R"({"tokens":[2]})");
  EXPECT_EQ(tokens("ndarray:uint16", std::string("\x04\x02", 2) + kNumbers), R"({"tokens":[1,65535]})");
  EXPECT_EQ(tokens("ndarray:uint16", std::string("\x05\x02\x00", 3) + kNumbers), R"({"tokens":[1,65535]})");
  EXPECT_EQ(tokens("ndarray:uint16:2", kNumbers, 4), R"({"tokens":[1,65535]})");
  EXPECT_EQ(tokens("ndarray", std::string("\x10\x04\x02", 3) + kNumbers), R"({"tokens":[1,65535]})");
  EXPECT_EQ(tokens("json", "[1, 2]"), R"({"tokens":[1, 2]})");
  const auto error = [&](const std::string& encoding, const std::string& value) {
    const std::string sample = number(static_cast<uint32_t>(value.size())) + value;
    return shard_error(
        folder.write("a.mds",
                     shard(config_of({"tokens"}, {encoding}, nlohmann::json::array({nullptr})), {sample})),
        {"tokens"});
  };
  EXPECT_EQ(
      error("bytes", "12345"),
      "is damaged or not a shard of MosaicML's streaming (the column \"tokens\" has 5 bytes of int64) after "
      "sample 1; fetch it again");
  EXPECT_NE(error("ndarray:float32",
                  "\x04\x01"
                  "1234")
                .find("has the encoding ndarray:float32"),
            std::string::npos);
  EXPECT_NE(error("ndarray:uint16",
                  "\x08\x01\x02"
                  "1234")
                .find("with one dimension"),
            std::string::npos);
  EXPECT_NE(error("ndarray", "").find("an array without its header"), std::string::npos);
}

TEST(MdsRows, RefusesShardsThatAreDamagedOrCutShort) {
  const TemporaryFolder folder;
  const nlohmann::json config = config_of({"text"}, {"str"}, {nullptr});
  const std::string bytes = shard(config, {number(5) + "Hello", number(2) + "ab"});
  const auto error = [&](const std::string& content) { return shard_error(folder.write("a.mds", content)); };
  EXPECT_EQ(error(bytes), "no error");
  EXPECT_EQ(error(bytes.substr(0, bytes.size() - 1)), "is cut short after sample 1; fetch it again");
  EXPECT_EQ(error(bytes.substr(0, 30)), "is cut short; fetch it again");
  EXPECT_NE(error(std::string(100, '\xff')).find("is damaged or not a shard of MosaicML's streaming ("),
            std::string::npos);
  EXPECT_NE(error(shard(nlohmann::json::array(), {"a"})).find("its header lacks column_names"),
            std::string::npos);
  EXPECT_NE(error(shard(config_of({"text"}, {}, {}), {"a"})).find("columns of different numbers"),
            std::string::npos);
  EXPECT_NE(error(shard(config, {number(9) + "Hello"})).find("a sample without its columns"),
            std::string::npos);
  EXPECT_NE(error(shard(config, {"a"})).find("a sample without its sizes"), std::string::npos);
}

TEST(MdsRows, OfAFolderAreThoseOfItsIndex) {
  const TemporaryFolder folder;
  const nlohmann::json config = config_of({"text"}, {"str"}, {nullptr});
  const std::string bytes = shard(config, {number(5) + "Hello"});
  folder.write("shard.00001.mds", bytes);
  folder.write("shard.00000.mds.zstd", zstd(bytes));
  folder.write("not in the index.mds", bytes);
  const auto entry = [](const char* raw, const nlohmann::json& zip) {
    return nlohmann::json{{"format", "mds"}, {"raw_data", {{"basename", raw}}}, {"zip_data", zip}};
  };
  nlohmann::json index = {{"version", 2},
                          {"shards",
                           {entry("shard.00000.mds", {{"basename", "shard.00000.mds.zstd"}}),
                            entry("shard.00001.mds", nullptr)}}};
  folder.write("index.json", index.dump());
  EXPECT_EQ(expand_texts({folder.path()}),
            (ListedShards{folder / "shard.00000.mds.zstd", folder / "shard.00001.mds"}));
  const auto error = [&] {
    folder.write("index.json", index.dump());
    try {
      expand_texts({folder.path()});
    } catch (const util::Error& found) {
      return std::string(found.what()).substr((folder / "index.json").string().size() + 10);
    }
    return std::string("no error");
  };
  index["shards"][1]["raw_data"]["basename"] = "shard.00002.mds";
  EXPECT_EQ(error(), "lists the shard shard.00002.mds, which is not there; fetch it");
  index["shards"][1]["raw_data"]["basename"] = "../shard.00001.mds";
  EXPECT_EQ(error(), "lists the shard ../shard.00001.mds, which is not in its folder; correct it");
  index["shards"][1] = {{"format", "json"}};
  EXPECT_EQ(error(),
            "lists shards of the format \"json\", and only mds can be read; write them with MDSWriter");
  index["shards"] = nlohmann::json::array();
  EXPECT_EQ(error(), "lists no shard; leave the folder out");
  // The index of something else: a folder of texts like any other.
  folder.write("index.json", R"({"files": []})");
  folder.write("a.txt", "a");
  EXPECT_EQ(expand_texts({folder.path()}).size(), 4u);
}

}  // namespace
}  // namespace fsdp::data
