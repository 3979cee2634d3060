#include "data/tokens/foreign_content.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "data/texts/text_input.h"
#include "data/token_fixtures.h"
#include "data/tokens/token_files.h"
#include "support/temporary_folder.h"

namespace fsdp::data {
namespace {

using ::testing::HasSubstr;

std::string text(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "To be, or not to be: caf\xc3\xa9.\n";
  return text.substr(0, bytes);
}

template <typename Token>
std::string tokens(size_t count, uint32_t vocab_size) {
  std::vector<Token> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<Token>((i * 7919 + i * i * 31) % vocab_size);
  return {reinterpret_cast<const char*>(values.data()), count * sizeof(Token)};
}

TEST(ForeignContent, IsToldByItsFirstBytes) {
  const std::pair<std::string, const char*> heads[] = {{std::string("\x1f\x8b\x08\0", 4), "zcat f.txt"},
                                                       {"\x28\xb5\x2f\xfd....", "zstdcat f.txt"},
                                                       {std::string("\xfd"
                                                                    "7zXZ\0",
                                                                    6),
                                                        "xzcat"},
                                                       {"BZh91AY", "bzcat"},
                                                       {"PK\x03\x04", "unzip -p"},
                                                       {"PAR1\x15", ".parquet"},
                                                       {"ARROW1", "jsonl"},
                                                       {"%PDF-1.7", "pdftotext"}};
  for (const auto& [head, remedy] : heads) {
    const auto found = foreign_to_text(head, "f.txt");
    ASSERT_TRUE(found.has_value()) << remedy;
    EXPECT_THAT(found->remedy, HasSubstr(remedy));
    EXPECT_TRUE(foreign_to_tokens(head, "", "f.bin").has_value());
  }
  EXPECT_EQ(foreign_to_text(text(500), "f.txt"), std::nullopt);
  EXPECT_EQ(foreign_to_text("", "f.txt"), std::nullopt);
}

TEST(ForeignContent, IsJsonInAFileOfThatNameAlone) {
  EXPECT_THAT(foreign_to_text(" \n[{\"text\": 1}]", "a.json")->remedy, HasSubstr("its elements are objects"));
  EXPECT_THAT(foreign_to_text("{\"text\": 1}", "a.json")->remedy, HasSubstr(".jsonl"));
  EXPECT_EQ(foreign_to_text("[a stage direction]", "a.txt"), std::nullopt);
  EXPECT_EQ(foreign_to_text("no JSON", "a.json"), std::nullopt);
}

TEST(ForeignContent, AmongTokensIsTextAndWiderTokens) {
  const auto found_in = [](const std::string& sample) {
    return foreign_to_tokens(sample.substr(0, 16), sample, "a.bin");
  };
  EXPECT_THAT(found_in(text(4096))->remedy, HasSubstr("fsdp-data tokenize a.bin"));
  EXPECT_THAT(found_in(text(4096).substr(26))->found, HasSubstr("text")) << "cut within a character";
  EXPECT_THAT(found_in(tokens<uint32_t>(1024, 50257))->remedy, HasSubstr(".u32"));
  for (uint32_t vocab_size : {2u, 17u, 256u, 258u, 32000u, 50257u, 65535u}) {
    EXPECT_EQ(found_in(tokens<uint16_t>(2048, vocab_size)), std::nullopt) << vocab_size;
  }
  EXPECT_THAT(found_in(tokens<uint32_t>(1024, 128256))->remedy, HasSubstr(".u32")) << "ids above 65535";
  for (uint32_t vocab_size : {300u, 50257u, 128256u, 201088u}) {
    EXPECT_THAT(found_in(tokens<uint64_t>(512, vocab_size))->remedy, HasSubstr("astype('uint32')"))
        << vocab_size;
  }
  EXPECT_EQ(found_in(std::string(4096, '\0')), std::nullopt) << "tokens that are all 0";
  EXPECT_EQ(found_in(std::string("\x05\x07", 2) + std::string(4096, '\0')), std::nullopt) << "padding";
  EXPECT_EQ(found_in("ab"), std::nullopt);
}

TEST(ForeignContent, IsNeitherReadAsTextNorAsTokens) {
  testing::TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& content) {
    std::ofstream(folder / name, std::ios::binary) << content;
    return (folder / name).string();
  };
  const auto error_of = [](auto&& body) -> std::string {
    try {
      body();
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return error.what();
    }
    return "";
  };
  const std::string archive = write("a.txt", "BZh91AY" + text(100));
  EXPECT_THAT(error_of([&] { TextInput input(archive); }), HasSubstr("bzcat"));
  EXPECT_THAT(error_of([&] { TokenFiles files({write("book.bin", text(5000))}); }), HasSubstr("is text"));
  EXPECT_THAT(error_of([&] { TokenFiles files({write("wide.bin", tokens<uint32_t>(5000, 50257))}); }),
              HasSubstr(".u32"));
  EXPECT_EQ(error_of([&] { TokenFiles files({write("wide.u32", tokens<uint32_t>(5000, 50257))}); }), "");
  EXPECT_EQ(error_of([&] { TokenFiles files({write("good.bin", tokens<uint16_t>(5000, 50257))}); }), "");
  for (const char* name : {"wide8.bin", "wide8.u32", "wide8.U32"}) {
    const std::string wide = write(name, tokens<uint64_t>(5000, 128256));
    EXPECT_THAT(error_of([&] { TokenFiles files({wide}); }), HasSubstr("eight bytes per token"));
    for (const TokenFormat format : {TokenFormat::kU16, TokenFormat::kU32}) {
      EXPECT_THAT(error_of([&] { TokenFiles files({wide}, format); }), HasSubstr("eight bytes per token"));
    }
  }
  EXPECT_EQ(error_of([&] { TokenFiles files({write("wide.U32", tokens<uint32_t>(5000, 128256))}); }), "");
  // An explicit format overrides other content.
  EXPECT_EQ(error_of([&] { TokenFiles files({write("told.bin", text(5000))}, TokenFormat::kU16); }), "");
}

}  // namespace
}  // namespace fsdp::data
