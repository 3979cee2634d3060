// Added tokens and tokens around texts of the files beside a tokenizer, as transformers 5.24 reads them.

#include "data/tokenizers/companions.h"

#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/sentencepiece_model.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {
namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;

/// The bytes, "th" (256), <s> (257) and </s> (258).
json small_vocabulary() {
  json tokens;
  for (int byte = 0; byte < 256; ++byte) tokens[byte_symbol(static_cast<unsigned char>(byte))] = byte;
  tokens["th"] = 256;
  return {{"model", {{"type", "BPE"}, {"vocab", tokens}, {"merges", {"t h"}}}},
          {"added_tokens",
           {{{"id", 257}, {"content", "<s>"}, {"special", true}},
            {{"id", 258}, {"content", "</s>"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
}

class FilesBeside : public ::testing::Test {
 protected:
  void SetUp() override { put("tokenizer.json", small_vocabulary()); }
  void put(const char* name, const json& content) { folder_.write(name, content.dump()); }
  std::unique_ptr<Tokenizer> tokenizer(bool split = false) const {
    return make_tokenizer(folder_.path(), {.split_special_tokens = split});
  }
  Ids ids(const std::string& text, bool split = false) const {
    Ids found;
    tokenizer(split)->encode(text, found);
    return found;
  }
  static json decoder_entry(const char* content, bool special = true, bool lstrip = false) {
    return {{"content", content}, {"special", special}, {"lstrip", lstrip}, {"normalized", false}};
  }
  fsdp::testing::TemporaryFolder folder_;
};

TEST_F(FilesBeside, AddedTokensJsonAddsTokens) {
  put("added_tokens.json", {{"<x>", 259}});
  EXPECT_EQ(ids("th<x> th"), (Ids{256, 259, ' ', 256}));
  EXPECT_EQ(ids("<x>"), Ids{259});
  EXPECT_EQ(ids("<x>", /*split=*/true), Ids{259});  // no file says that it is special
  EXPECT_EQ(tokenizer()->vocab_size(), 260);
  put("tokenizer_config.json", {{"additional_special_tokens", {"<x>"}}});
  EXPECT_EQ(ids("<x>", /*split=*/true).size(), 3u);
}

TEST_F(FilesBeside, TheDecoderOfTheConfigComesBeforeAddedTokensJson) {
  put("added_tokens.json", {{"<y>", 259}});
  put("tokenizer_config.json", {{"added_tokens_decoder", {{"259", decoder_entry("<x>", true, true)}}}});
  EXPECT_EQ(ids("th \n<x>"), (Ids{256, 259}));
  EXPECT_GT(ids("<y>").size(), 1u);
}

TEST_F(FilesBeside, TheDecoderReplacesTheOptionsOfATokenOfTheMainFile) {
  put("tokenizer_config.json", {{"added_tokens_decoder", {{"257", decoder_entry("<s>", true, true)}}}});
  EXPECT_EQ(ids("th  <s>th"), (Ids{256, 257, 256}));
}

TEST_F(FilesBeside, ThatContradictTheMainFileAreRefused) {
  put("added_tokens.json", {{"<s>", 300}});
  expect_error(ErrorKind::kData, {"added_tokens.json", "\"<s>\" the id 300", "257"}, [&] { tokenizer(); });
  put("added_tokens.json", {{"<x>", 256}});
  expect_error(ErrorKind::kData, {"\"<x>\" the id 256", "\"th\""}, [&] { tokenizer(); });
  put("added_tokens.json", {{"<x>", -1}});
  expect_error(ErrorKind::kData, {"the id -1"}, [&] { tokenizer(); });
}

TEST_F(FilesBeside, ATemplateOrTheConfigSaysWhatIsBeforeTexts) {
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{});
  put("tokenizer_config.json", {{"bos_token", "<s>"}, {"add_bos_token", true}});
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{257});
  put("tokenizer_config.json", {{"bos_token", {{"content", "<s>"}}}, {"add_bos_token", false}});
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{});
  // The file decides, as in transformers, even against the config.
  json file = small_vocabulary();
  const json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single", {begin, text, begin}},
         {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {257}}, {"tokens", {"<s>"}}}}}}}}}};
  put("tokenizer.json", file);
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{257});
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"</s>", 258}}, {"sep", {"<s>", 257}}};
  put("tokenizer.json", file);
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{258});
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<none>"}}}}, text}}};
  put("tokenizer.json", file);
  expect_error(ErrorKind::kData, {"post-processor with the token \"<none>\""}, [&] { tokenizer(); });
}

/// Pieces for <unk>, <s>, </s>, a blank, "t", "h" and "th".
SentencePieceModel small_model() {
  using Kind = SentencePieceModel::PieceKind;
  SentencePieceModel model;
  model.type = SentencePieceModel::Type::kBpe;
  model.drops_blanks = false;
  model.pieces = {{"<unk>", 0, Kind::kUnknown},
                  {"<s>", 0, Kind::kControl},
                  {"</s>", 0, Kind::kControl},
                  {"\u2581", -1},
                  {"t", -2},
                  {"h", -3},
                  {"th", -0.5F}};
  return model;
}

class FilesBesideAModel : public FilesBeside {
 protected:
  void SetUp() override { folder_.write("tokenizer.model", small_model().serialized()); }
};

TEST_F(FilesBesideAModel, AddTokensThatAreLookedForInTexts) {
  EXPECT_EQ(ids("th<s>"), (Ids{3, 6, 0}));
  put("added_tokens.json", {{"<x>", 7}});
  EXPECT_EQ(ids("th<x>th"), (Ids{3, 6, 7, 3, 6}));
  const auto with = tokenizer();
  EXPECT_EQ(with->vocab_size(), 8);
  EXPECT_EQ(with->id_of("<x>"), 7);
  EXPECT_EQ(with->decode({3, 6, 7, 3, 6}), "th<x> th");
  put("tokenizer_config.json",
      {{"legacy", false},
       {"added_tokens_decoder", {{"1", decoder_entry("<s>")}, {"9", decoder_entry("<x>")}}}});
  EXPECT_EQ(ids("th<x>th<s>"), (Ids{3, 6, 9, 6, 1}));  // a blank at the beginning alone
  EXPECT_EQ(tokenizer()->decode({8}), "");             // an id in the gap
  EXPECT_GT(ids("<s>", /*split=*/true).size(), 1u);
}

TEST_F(FilesBesideAModel, SayWhatIsBeforeTexts) {
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{});
  put("tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", "<s>"}});
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{1});  // the class's default
  put("tokenizer_config.json",
      {{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", "<s>"}, {"add_bos_token", false}});
  EXPECT_EQ(tokenizer()->begin_of_text(), Ids{});
}

TEST_F(FilesBesideAModel, ThatContradictItAreRefused) {
  put("tokenizer_config.json", {{"added_tokens_decoder", {{"0", decoder_entry("<s>")}}}});
  expect_error(ErrorKind::kData, {"tokenizer_config.json", "\"<s>\" the id 0"}, [&] { tokenizer(); });
}

}  // namespace
}  // namespace fsdp::data
