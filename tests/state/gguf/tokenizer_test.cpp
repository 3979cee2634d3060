// Tokenizers as metadata of GGUF files.

#include "state/gguf_export/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/texts/train_tokenizer.h"
#include "data/tokenizers/gguf_tokenizer.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/sentencepiece_model.h"
#include "data/tokenizers/sentencepiece_tokenizer.h"
#include "state/gguf_export/export.h"
#include "state/gguf_export/writer.h"
#include "support/checkpoint_fixtures.h"
#include "support/source_folder.h"

namespace fsdp::gguf {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;
using Numbers = std::vector<int32_t>;

std::map<std::string, Value> described(const std::string& tokenizer, int64_t vocab_size,
                                       const nlohmann::json& model_config = nlohmann::json::object()) {
  Metadata metadata;
  describe_tokenizer(tokenizer, vocab_size, model_config, metadata);
  return {metadata.begin(), metadata.end()};
}

template <typename Type>
Type value_of(const std::map<std::string, Value>& metadata, const std::string& key) {
  return std::get<Type>(metadata.at(key));
}

/// A vocabulary of all bytes, "th", "the" and two added tokens.
nlohmann::json small_tokenizer() {
  nlohmann::json tokenizer, vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[data::byte_symbol(static_cast<unsigned char>(byte))] = byte;
  vocabulary["th"] = 256;
  vocabulary["the"] = 257;
  tokenizer["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"t h", "th e"}}};
  tokenizer["added_tokens"] = {{{"id", 258}, {"content", "<s>"}, {"special", true}},
                               {{"id", 259}, {"content", "tool"}, {"special", false}}};
  tokenizer["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return tokenizer;
}

TEST(GgufTokenizer, OfBytesIsPairEncodingWithoutMerges) {
  const auto metadata = described("bytes", 256);
  EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(value_of<Strings>(metadata, "tokenizer.ggml.merges"), Strings());
  const auto tokens = value_of<Strings>(metadata, "tokenizer.ggml.tokens");
  EXPECT_EQ(tokens.at('a'), "a");
  EXPECT_EQ(tokens.at(' '), "\u0120");
  EXPECT_FALSE(value_of<bool>(metadata, "tokenizer.ggml.add_bos_token"));
}

TEST(GgufTokenizer, HasWhatTheFilesBesideTheVocabularySay) {
  TemporaryFolder folder;
  nlohmann::json tokenizer = small_tokenizer();
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  folder.write("tokenizer.json", tokenizer.dump());
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<s>"}, "chat_template": "{{ a }}"})");
  auto metadata = described(folder.path().string(), 264, {{"pad_token_id", 259}, {"bos_token_id", 5000}});
  EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.ggml.pre"), "gpt-2");
  EXPECT_THAT(value_of<Strings>(metadata, "tokenizer.ggml.merges"), ElementsAre("t h", "th e"));
  const auto tokens = value_of<Strings>(metadata, "tokenizer.ggml.tokens");
  EXPECT_EQ(Strings(tokens.begin() + 256, tokens.end()),
            (Strings{"th", "the", "<s>", "tool", "[PAD260]", "[PAD261]", "[PAD262]", "[PAD263]"}));
  const auto kinds = value_of<Numbers>(metadata, "tokenizer.ggml.token_type");
  EXPECT_EQ(Numbers(kinds.begin() + 257, kinds.begin() + 261), (Numbers{1, 3, 4, 5}));
  EXPECT_EQ(value_of<uint32_t>(metadata, "tokenizer.ggml.bos_token_id"), 258U);
  EXPECT_EQ(value_of<uint32_t>(metadata, "tokenizer.ggml.eos_token_id"), 258U);
  EXPECT_EQ(value_of<uint32_t>(metadata, "tokenizer.ggml.padding_token_id"), 259U);
  EXPECT_TRUE(value_of<bool>(metadata, "tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.chat_template"), "{{ a }}");

  folder.write("chat_template.jinja", "{{ b }}");
  metadata = described(folder.path().string(), 264);
  EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.chat_template"), "{{ b }}");
}

TEST(GgufTokenizer, HasTheAddedTokensBesideTheMainFile) {
  TemporaryFolder folder;
  folder.write("tokenizer.json", small_tokenizer().dump());
  folder.write("added_tokens.json", R"({"<x>": 260, "tool": 259})");
  const auto metadata = described(folder.path().string(), 262);
  EXPECT_EQ(value_of<Strings>(metadata, "tokenizer.ggml.tokens").at(260), "<x>");
  EXPECT_EQ(value_of<Numbers>(metadata, "tokenizer.ggml.token_type").at(260), 4);
  folder.write("added_tokens.json", R"({"<x>": 5})");
  EXPECT_THAT(error_of([&] { described(folder.path().string(), 262); }).second,
              HasSubstr("gives the token \"<x>\" the id 5"));
}

TEST(GgufTokenizer, OfRanksHasTheirMerges) {
  TemporaryFolder folder;
  nlohmann::json vocabulary = nlohmann::json::array();
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    vocabulary.push_back({{"rank", byte}, {"token_bytes", base64}});
  }
  vocabulary.push_back({{"rank", 256}, {"token_bytes", "dGg="}});
  vocabulary.push_back({{"rank", 257}, {"token_bytes", "dGhl"}});
  nlohmann::json file;
  file["vocab"] = vocabulary;
  file["config"] = {
      {"pattern", data::kTekkenSplitPattern}, {"default_vocab_size", 261}, {"default_num_special_tokens", 3}};
  folder.write("tekken.json", file.dump());
  const auto metadata = described(folder.path().string(), 261);
  EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.ggml.pre"), "tekken");
  EXPECT_THAT(value_of<Strings>(metadata, "tokenizer.ggml.merges"), ElementsAre("t h", "th e"));
  EXPECT_EQ(value_of<uint32_t>(metadata, "tokenizer.ggml.bos_token_id"), 1U);
  EXPECT_EQ(value_of<uint32_t>(metadata, "tokenizer.ggml.eos_token_id"), 2U);
  EXPECT_TRUE(value_of<bool>(metadata, "tokenizer.ggml.add_bos_token"));
}

TEST(GgufTokenizer, NamesTheSplitOfEachFamily) {
  const std::string families = source_folder() + "/tests/data/bpe/families/";
  for (const auto& [family, pre] :
       {std::pair("gpt2", "gpt-2"), {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}}) {
    EXPECT_EQ(pre_tokenizer_of(data::read_tokenizer_json(families + family + ".json")), pre);
  }
  for (const char* family : {"llama2", "mistral"}) {
    const auto metadata = described(families + family + ".json", 4096);
    EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.ggml.model"), "llama");
    EXPECT_TRUE(value_of<bool>(metadata, "tokenizer.ggml.add_space_prefix"));
  }
}

/// Texts on which wrong splits, merges, blanks or bytes show.
constexpr const char* kTexts[] = {"The quick brown fox's 12345 jumps!\n\n  over\t the lazy dog",
                                  " caf\u00e9 \u4f60\u597d\u4e16\u754c \U0001f600 <s></s> a  b   c",
                                  "don't \u00a0 x\r\ny"};

TEST(GgufTokenizer, ReadFromTheFileGivesTheIdsOfItsSource) {
  TemporaryFolder folder;
  const std::string families = source_folder() + "/tests/data/bpe/families/";
  for (const std::string family : {"gpt2", "llama3", "qwen2", "llama2"}) {
    const std::string source = families + family + ".json";
    Metadata metadata;
    const auto tokenizer = data::make_tokenizer(source);
    describe_tokenizer(source, tokenizer->vocab_size(), nlohmann::json::object(), metadata);
    Writer(folder / "model.gguf", metadata, {}).finish();
    const auto read = data::make_tokenizer((folder / "model.gguf").string());
    EXPECT_EQ(read->name(), (folder / "model.gguf").string());
    for (const std::string text : kTexts) {
      std::vector<int64_t> ids, expected;
      tokenizer->encode(text, expected);
      read->encode(text, ids);
      EXPECT_EQ(ids, expected) << family << ": " << text;
      EXPECT_EQ(read->decode(ids), tokenizer->decode(expected)) << family;
    }
    EXPECT_EQ(read->begin_of_text(), tokenizer->begin_of_text()) << family;
    std::filesystem::remove(folder / "model.gguf");
  }
}

TEST(GgufTokenizer, ReadFromTheFileHasItsChatTemplateAndTheEndsOfTurns) {
  TemporaryFolder folder;
  nlohmann::json tokenizer = small_tokenizer();
  tokenizer["added_tokens"].push_back({{"id", 260}, {"content", "<|im_end|>"}, {"special", true}});
  folder.write("tokenizer.json", tokenizer.dump());
  folder.write("tokenizer_config.json", R"({"eos_token": "<s>", "chat_template": "{{ a }}"})");
  Metadata metadata;
  describe_tokenizer(folder.path().string(), 261, nlohmann::json::object(), metadata);
  Writer(folder / "model.gguf", metadata, {}).finish();
  const auto files = data::gguf_tokenizer_files(folder / "model.gguf");
  const auto config = nlohmann::json::parse(files.at("tokenizer_config.json"));
  EXPECT_EQ(config["chat_template"], "{{ a }}");
  EXPECT_EQ(config["eos_token"], "<s>");
  EXPECT_EQ(config["add_bos_token"], false);
  EXPECT_EQ(nlohmann::json::parse(files.at("generation_config.json"))["eos_token_id"],
            nlohmann::json({258, 260}));
}

TEST(GgufTokenizer, ThatIsNotKnownIsRefusedByTheNameOfTheFile) {
  TemporaryFolder folder;
  const std::string file = (folder / "model.gguf").string();
  const auto refusal = [&](const Metadata& metadata) {
    fs::remove(file);
    Writer(file, metadata, {}).finish();
    const auto [kind, text] = error_of([&] { data::make_tokenizer(file); });
    EXPECT_EQ(kind, ErrorKind::kData);
    EXPECT_THAT(text, HasSubstr(file));
    return text;
  };
  const std::pair<std::string, Value> tokens("tokenizer.ggml.tokens", Strings{"a", "b"}),
      bytes("tokenizer.ggml.model", std::string("gpt2"));
  EXPECT_THAT(refusal({}), HasSubstr("has no vocabulary"));
  EXPECT_THAT(refusal({tokens, {"tokenizer.ggml.model", std::string("bert")}}),
              HasSubstr("must have a vocabulary of the kind gpt2 or llama, but has \"bert\""));
  EXPECT_THAT(
      refusal({tokens, bytes, {"tokenizer.ggml.pre", std::string("other")}}),
      HasSubstr("qwen2, stablelm2, deepseek-r1-qwen, hunyuan, smollm, tekken, gpt-4o, llama4, but has "
                "\"other\"; give the tokenizer.json of the model"));
  EXPECT_THAT(refusal({tokens, bytes, {"tokenizer.ggml.token_type", Numbers{1}}}),
              HasSubstr("as many entries in \"tokenizer.ggml.token_type\" as tokens, 2, but has 1"));
  EXPECT_THAT(refusal({tokens,
                       bytes,
                       {"tokenizer.ggml.pre", std::string("gpt-2")},
                       {"tokenizer.ggml.merges", Strings{"a c"}}}),
              HasSubstr("c"));
}

TEST(GgufTokenizer, ThatLlamaCppDoesNotHaveIsRefused) {
  TemporaryFolder folder;
  nlohmann::json tokenizer = small_tokenizer();
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "x+"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  folder.write("tokenizer.json", tokenizer.dump());
  auto [kind, text] = error_of([&] { described(folder.path().string(), 300); });
  EXPECT_EQ(kind, ErrorKind::kUsage);
  EXPECT_THAT(text, HasSubstr("has the patterns [\"x+\"]; export the model without tokenizer (\"none\")"));
  EXPECT_THAT(
      error_of([&] { described(source_folder() + "/tests/data/bpe/families/t5.json", 40000); }).second,
      HasSubstr("is Unigram"));
  EXPECT_THAT(error_of([&] { described("bytes", 255); }).second,
              HasSubstr("has a token with the id 255, but the model has a vocabulary of 255"));
}

TEST(GgufTokenizer, OfSentencePieceHasItsPiecesAndScores) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "the quick brown fox jumps over number " + std::to_string(i * 7919) + "\n";
  folder.write("text.txt", text);
  const std::string path = (folder / "tokenizer.model").string();
  data::train_tokenizer({.texts = {(folder / "text.txt").string()}, .output = path, .vocab_size = 320});
  const auto metadata = described(path, 320);
  EXPECT_EQ(value_of<std::string>(metadata, "tokenizer.ggml.model"), "llama");
  const auto tokens = value_of<Strings>(metadata, "tokenizer.ggml.tokens");
  EXPECT_EQ(Strings(tokens.begin(), tokens.begin() + 4), (Strings{"<unk>", "<s>", "</s>", "<0x00>"}));
  const auto kinds = value_of<Numbers>(metadata, "tokenizer.ggml.token_type");
  EXPECT_EQ(Numbers(kinds.begin(), kinds.begin() + 4), (Numbers{2, 3, 3, 6}));
  // Merges in the order in which they were learned.
  const auto scores = value_of<std::vector<float>>(metadata, "tokenizer.ggml.scores");
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(scores.at(259 + i), -static_cast<float>(i));
  EXPECT_EQ(value_of<uint32_t>(metadata, "tokenizer.ggml.eos_token_id"), 2U);
  EXPECT_TRUE(value_of<bool>(metadata, "tokenizer.ggml.add_space_prefix"));
  EXPECT_FALSE(value_of<bool>(metadata, "tokenizer.ggml.remove_extra_whitespaces"));

  const std::string whole = util::read_file(path);
  for (const size_t length : {size_t{1}, size_t{7}, whole.size() - 1}) {
    auto [kind, found] = error_of([&] { data::parse_sentencepiece_model(whole.substr(0, length), "m"); });
    EXPECT_EQ(kind, ErrorKind::kData) << length;
    EXPECT_THAT(found, HasSubstr("the tokenizer m is not a SentencePiece model"));
  }
}

}  // namespace
}  // namespace fsdp::gguf
