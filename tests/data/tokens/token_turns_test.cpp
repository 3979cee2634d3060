#include "data/tokens/token_turns.h"

#include "data/token_fixtures.h"
#include "data/tokens/convert.h"
#include "data/tokens/data_identity.h"
#include "data/tokens/inspect.h"
#include "data/tokens/token_files.h"
#include "data/tokens/token_writer.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

constexpr TokenPart kStart = TokenPart::kDocumentStart, kContext = TokenPart::kContext,
                    kAssistant = TokenPart::kAssistant, kLast = TokenPart::kLastTurn;
const std::vector<TokenPart> kParts = {kStart, kContext, kAssistant, kAssistant, kContext, kLast,
                                       kStart, kLast,    kStart,     kContext,   kLast};

std::string write_conversations(const TemporaryFolder& folder, const std::string& name,
                                TokenFormat format = TokenFormat::kU16, int64_t first_id = 10) {
  TokenWriter writer(folder / name, {.format = format, .vocab_size = 1000, .has_turns = true});
  std::vector<int64_t> ids;
  for (size_t i = 0; i < kParts.size(); ++i) ids.push_back(first_id + static_cast<int64_t>(i));
  writer.append(ids, kParts);
  writer.finish();
  writer.commit();
  return folder / name;
}

std::vector<TokenPart> parts_of(const std::string& path) {
  const TokenFile file(path);
  std::vector<TokenPart> parts(static_cast<size_t>(file.size()));
  file.turns()->read(0, file.size(), parts.data());
  return parts;
}

TEST(TokenTurns, AreReadAsWritten) {
  const TemporaryFolder folder;
  const std::string path = write_conversations(folder, "a.bin");
  EXPECT_EQ(parts_of(path), kParts);
  const TokenFile file(path);
  EXPECT_EQ(file.turns()->count(kStart), 3);
  EXPECT_EQ(file.turns()->count(kAssistant), 2);
  EXPECT_EQ(file.turns()->count(kLast), 3);
  EXPECT_EQ(folder.read("a.bin.turns").size(), 40u + 3u);
}

TEST(TokenTurns, ThatDoNotFitTheTokensAreRefused) {
  const TemporaryFolder folder;
  const std::string path = write_conversations(folder, "a.bin");
  const std::string good = folder.read("a.bin.turns");
  const auto refused = [&](const std::string& content, const std::string& part) {
    folder.write("a.bin.turns", content);
    expect_error(ErrorKind::kData, {"a.bin.turns", part, "a.bin"}, [&] { TokenFile file(path); });
  };
  refused("", "not a companion of a file of conversations");
  refused("x" + good.substr(1), "not a companion of a file of conversations");
  std::string version = good;
  version[8] = 2;
  refused(version, "must have version 1, but has 2");
  refused(good.substr(0, good.size() - 1), "must have 43 bytes, but has 42");
  std::string damaged = good;
  damaged[41] = static_cast<char>(damaged[41] ^ 4);
  refused(damaged, "its hash is not that of its content");
  folder.write("a.bin.turns", good);
  std::string tokens = folder.read("a.bin");
  tokens[4] = static_cast<char>(tokens[4] + 1);
  folder.write("a.bin", tokens);
  expect_error(ErrorKind::kData, {"written for other tokens of the same number"},
               [&] { TokenFile file(path); });
  folder.write("a.bin", tokens.substr(2));
  expect_error(ErrorKind::kData, {"is for 11 tokens, but there are 10"}, [&] { TokenFile file(path); });
}

TEST(TokenTurns, OfOtherTokensAreNotLeftBesideATextsTokens) {
  const TemporaryFolder folder;
  const std::string path = write_conversations(folder, "a.bin");
  expect_error(ErrorKind::kUsage, {"a.bin.turns", "delete that or choose another name"},
               [&] { TokenWriter writer(path); });
  EXPECT_EQ(parts_of(write_conversations(folder, "a.bin", TokenFormat::kU16, /*first_id=*/20)), kParts);
}

TEST(TokenTurns, SurviveConversions) {
  const TemporaryFolder folder;
  const std::string a = write_conversations(folder, "a.bin");
  convert({.inputs = {a, a}, .output = folder / "b.bin", .format = TokenFormat::kMegatron});
  std::vector<TokenPart> twice = kParts;
  twice.insert(twice.end(), kParts.begin(), kParts.end());
  EXPECT_EQ(parts_of(folder / "b.bin"), twice);
  EXPECT_EQ(TokenFile(folder / "b.bin").documents(), 6);
  EXPECT_EQ(TokenFile(folder / "b.bin").document_begin(1), 6);
  write_tokens(folder, "text.bin", {1, 2, 3});
  expect_error(ErrorKind::kUsage, {"is of conversations", "convert them one by one"}, [&] {
    convert({.inputs = {a, folder / "text.bin"}, .output = folder / "c.bin", .format = TokenFormat::kU16});
  });
}

TEST(TokenTurns, AreInspected) {
  const TemporaryFolder folder;
  const TokenStatistics statistics = inspect({.files = {write_conversations(folder, "a.bin")}});
  EXPECT_EQ(statistics.files[0].documents, 3);
  EXPECT_EQ(statistics.files[0].assistant_tokens, 5);
  EXPECT_EQ(statistics.files[0].last_turn_tokens, 3);
  EXPECT_NE(
      to_text(statistics).find("3 documents, 5 tokens of the assistant (3 in last turns or chosen answers)"),
      std::string::npos);
  EXPECT_NE(to_json(statistics).find(R"("last_turn_tokens": 3)"), std::string::npos);
}

TEST(TokenTurns, BelongToTheIdentityOfTheData) {
  const TemporaryFolder folder;
  const auto before = identity_of(TokenFiles({write_conversations(folder, "a.bin")}));
  TokenWriter writer(folder / "a.bin", {.has_turns = true});
  std::vector<TokenPart> parts = kParts;
  std::swap(parts[1], parts[2]);
  writer.append({10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, parts);
  writer.finish();
  writer.commit();
  EXPECT_TRUE(difference(before, identity_of(TokenFiles({folder / "a.bin"}))));
}

}  // namespace
}  // namespace fsdp::data
