// Documents in texts: files, lines of JSON, rows of tables.

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "data/compressed_fixtures.h"
#include "data/parquet_fixtures.h"
#include "data/texts/tokenize.h"
#include "data/tokenize_fixtures.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;
using ::testing::HasSubstr;

TEST(Tokenize, EachFileAndEachJsonLineIsADocument) {
  TemporaryFolder folder;
  folder.write("a.txt", "the first");
  folder.write("b.jsonl",
               "{\"text\": \"second\\nline\", \"n\": 1}\n\n  \n{\"text\": \"\\u00e9\"}\r\n{\"text\": \"\"}");
  auto options = tokenize_options(folder, {folder / "?.*"});
  options.tokenizer = kGpt2Kind;
  options.format = TokenFormat::kMegatron;
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.documents, 4);
  auto tokenizer = make_tokenizer(kGpt2Kind);
  EXPECT_EQ(tokenizer->decode(tokenized_ids(options.output)),
            "the first<|endoftext|>second\nline<|endoftext|>\u00e9<|endoftext|><|endoftext|>");
  TokenFile file(options.output);
  EXPECT_EQ(file.documents(), 4);
  EXPECT_EQ(file.document_begin(4) - file.document_begin(3), 1);
}

TEST(Tokenize, PutsTheSeparatorThatIsAskedFor) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "the"), folder.write("b", "the")});
  options.tokenizer = kGpt2Kind;
  auto decoded = [&](const std::string& separator) {
    options.document_separator = separator;
    tokenize(options);
    return make_tokenizer(kGpt2Kind)->decode(tokenized_ids(options.output));
  };
  EXPECT_EQ(decoded(""), "the<|endoftext|>the<|endoftext|>");
  EXPECT_EQ(decoded("eos"), "the<|endoftext|>the<|endoftext|>");
  EXPECT_EQ(decoded("none"), "thethe");
  EXPECT_EQ(decoded("!"), "the!the!");
  expect_error(ErrorKind::kUsage, {"not a token", "</s>"}, [&] { decoded("</s>"); });
  options.tokenizer = "bytes";
  options.document_separator = "eos";
  expect_error(ErrorKind::kUsage, {"eos", "bytes"}, [&] { tokenize(options); });
}

TEST(Tokenize, PutsBeforeDocumentsWhatTheTokenizerDoes) {
  TemporaryFolder folder;
  nlohmann::json file = nlohmann::json::parse(util::read_file(kGpt2Kind));
  file["added_tokens"].push_back({{"id", 2000}, {"content", "<bos>"}, {"special", true}});
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<bos>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  folder.write("tokenizer.json", file.dump());
  // More than a job of the second document.
  const std::string words = [] {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += "the quick ";
    return text;
  }();
  auto options = tokenize_options(folder, {folder.write("a", "the"), folder.write("b", words)});
  options.tokenizer = folder / "tokenizer.json";
  options.threads = 3;
  std::string note;
  auto decoded = [&](const std::string& start) {
    options.document_start = start;
    note = tokenize(options).note;
    return make_tokenizer(options.tokenizer)->decode(tokenized_ids(options.output));
  };
  const std::string begun = "<bos>the<|endoftext|><bos>" + words + "<|endoftext|>";
  EXPECT_TRUE(decoded("") == begun);
  EXPECT_THAT(note, HasSubstr("begins with the token 2000"));
  EXPECT_THAT(note, HasSubstr("`document_start` none"));
  EXPECT_TRUE(decoded("bos") == begun);
  EXPECT_EQ(note, "");
  EXPECT_TRUE(decoded("none") == "the<|endoftext|>" + words + "<|endoftext|>");
  EXPECT_TRUE(decoded("text:> ") == "> the<|endoftext|>> " + words + "<|endoftext|>");
  options.tokenizer = kGpt2Kind;
  EXPECT_TRUE(decoded("") == "the<|endoftext|>" + words + "<|endoftext|>");
  EXPECT_EQ(note, "");
  expect_error(ErrorKind::kUsage, {"document_start", "bos"}, [&] { decoded("bos"); });
}

TEST(Tokenize, SeparatesDocumentsByAnyIdOrText) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "the"), folder.write("b", "x")});
  options.tokenizer = "bytes";
  auto ids = [&](const std::string& separator) {
    options.document_separator = separator;
    tokenize(options);
    return tokenized_ids(options.output);
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids("id:256"), (Ids{'t', 'h', 'e', 256, 'x', 256}));
  EXPECT_EQ(ids(R"(text:\n\t\\-\q)"),
            (Ids{'t', 'h', 'e', '\n', '\t', '\\', '-', '\\', 'q', 'x', '\n', '\t', '\\', '-', '\\', 'q'}));
  EXPECT_EQ(ids("\n"), (Ids{'t', 'h', 'e', '\n', 'x', '\n'}));
  EXPECT_EQ(ids("none"), (Ids{'t', 'h', 'e', 'x'}));
  for (const char* bad : {"id:", "id:x", "id:-1", "id:4294967296", "id:1 "}) {
    expect_error(ErrorKind::kUsage, {bad, "id:0 to id:4294967295"}, [&] { ids(bad); });
  }
  expect_error(ErrorKind::kUsage, {"65537", "two bytes"}, [&] { ids("id:65536"); });
}

TEST(Tokenize, SaysThatNothingSeparatesDocumentsUnlessItIsMeant) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "the"), folder.write("b", "x")});
  options.tokenizer = "bytes";
  const std::string warning = tokenize(options).warning;
  EXPECT_NE(warning.find("nothing separates the 2 documents"), std::string::npos) << warning;
  EXPECT_NE(warning.find("id:256 (with model.vocab_size = 257)"), std::string::npos) << warning;
  options.document_separator = "none";
  EXPECT_EQ(tokenize(options).warning, "");
  options.document_separator.clear();
  options.texts.pop_back();
  EXPECT_EQ(tokenize(options).warning, "");
  options.validation_output = folder / "validation.bin";
  options.validation_fraction = 0.5;
  EXPECT_EQ(tokenize(options).warning, "") << "a part of the one document in each file";
}

TEST(Tokenize, TakesNamesOfSpecialTokensAsTextWhereThatIsAskedFor) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "the<|endoftext|>the")});
  options.tokenizer = kGpt2Kind;
  const auto tokenizer = make_tokenizer(kGpt2Kind);
  const int64_t end = *tokenizer->end_of_text();
  tokenize(options);
  const auto as_token = tokenized_ids(options.output);
  EXPECT_EQ(std::count(as_token.begin(), as_token.end(), end), 2);
  options.split_special_tokens = true;
  tokenize(options);
  const auto as_text = tokenized_ids(options.output);
  EXPECT_EQ(std::count(as_text.begin(), as_text.end(), end), 1) << "the separator";
  EXPECT_EQ(tokenizer->decode(as_text), "the<|endoftext|>the<|endoftext|>");
}

TEST(Tokenize, ChoosesDocumentsForValidationByTheirContentAndTheSeed) {
  TemporaryFolder folder;
  std::string lines, reversed;
  for (int i = 0; i < 2000; ++i) {
    std::string line = "{\"text\": \"document " + std::to_string(i) + ";\"}\n";
    lines += line;
    reversed.insert(0, line);
  }
  auto options = tokenize_options(folder, {folder.write("a.jsonl", lines)});
  options.validation_output = folder / "v.bin";
  options.validation_fraction = 0.2;
  options.threads = 2;
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.documents + report.validation_documents, 2000);
  EXPECT_NEAR(static_cast<double>(report.validation_documents), 400, 80);
  std::string chosen = tokenized_text(options.validation_output);

  // The same documents are chosen in another order and among others.
  options.texts = {folder.write("b.jsonl", reversed + "{\"text\": \"one more;\"}\n")};
  tokenize(options);
  auto sorted = [](const std::string& text) {
    std::vector<std::string> documents;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = text.find(';', begin) + 1;
      if (text.substr(begin, 8) == "document") documents.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    std::sort(documents.begin(), documents.end());
    return documents;
  };
  EXPECT_EQ(sorted(tokenized_text(options.validation_output)), sorted(chosen));
  options.seed = 2;
  tokenize(options);
  EXPECT_NE(sorted(tokenized_text(options.validation_output)), sorted(chosen));
}

TEST(Tokenize, WholeFilesCanBeChosenForValidationToo) {
  TemporaryFolder folder;
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) {
    std::string name(1, static_cast<char>('A' + i));
    texts.push_back(folder.write(name, std::string(i == 7 ? 600'000 : 5, name[0])));
  }
  auto options = tokenize_options(folder, texts);
  options.validation_output = folder / "v.bin";
  options.validation_split = "documents";
  options.validation_fraction = 0.3;
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.documents + report.validation_documents, 60);
  EXPECT_GT(report.validation_documents, 5);
  std::string train = tokenized_text(options.output), validation = tokenized_text(options.validation_output);
  for (char c : validation) EXPECT_EQ(train.find(c), std::string::npos) << c;
}

TEST(Tokenize, TheEndOfATextBeginsWithAWholeCharacter) {
  TemporaryFolder folder;
  auto options = tokenize_options(
      folder, {folder.write("a", "12345678\U0001f600\U0001f600"), folder.write("b", "0123456789")});
  options.validation_output = folder / "v.bin";
  options.validation_fraction = 0.4;  // 6.4 bytes of the 16: within the first face
  tokenize(options);
  EXPECT_EQ(tokenized_text(options.output), "12345678\U0001f600012345");
  EXPECT_EQ(tokenized_text(options.validation_output), "\U0001f6006789");
}

TEST(Tokenize, RefusesLinesThatAreNoDocuments) {
  TemporaryFolder folder;
  auto refuse = [&](const std::string& line, const std::string& part) {
    std::string path = folder.write("a.jsonl", "{\"text\": \"good\"}\n" + line + "\n{\"text\": \"good\"}");
    for (int threads : {1, 2}) {
      auto options = tokenize_options(folder, {path});
      options.threads = threads;
      expect_error(ErrorKind::kData, {"line 2 of " + path, part, "`skip_bad`"}, [&] { tokenize(options); });
    }
  };
  refuse("no json", "is not valid JSON");
  refuse("[1]", "is another JSON value");
  refuse("{\"content\": \"x\", \"id\": 1}", "has the fields \"content\", \"id\";");
  refuse("{\"text\": 3}", "has a number");
  refuse("{\"text\": \"\xff\"}", "is not valid JSON");
  refuse(std::string(1000, '['), "nests deeper");
  EXPECT_EQ(folder.entries(), 2);  // a.jsonl and the empty out/
}

TEST(Tokenize, ReadsTheFilesOfAFolderWhateverTheyAre) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "d/part");
  folder.write("d/a.txt.gz", gzip("first;"));
  folder.write("d/b.jsonl.zst", zstd("{\"text\": \"second;\"}\n{\"text\": \"third;\"}\n"));
  write_parquet(folder / "d/part/c.parquet", {{"text", column_of({"fourth;", "fifth;"})}});
  folder.write("d/part/d.jsonl.gz", gzip("{\"text\": \"sixth;\"}") + gzip("\n{\"text\": \"seventh\"}"));
  folder.write("d/notes.md", "not this");
  auto options = tokenize_options(folder, {folder / "d"});
  int64_t done = 0, all = 0;
  options.progress = [&](std::string_view, int64_t done_bytes, int64_t total_bytes) {
    EXPECT_GE(done_bytes, done);
    done = done_bytes;
    all = total_bytes;
  };
  for (int threads : {1, 3}) {
    done = 0;
    options.threads = threads;
    const TokenizeReport report = tokenize(options);
    EXPECT_EQ(tokenized_text(options.output), "first;second;third;fourth;fifth;sixth;seventh");
    EXPECT_EQ(report.documents, 7);
    EXPECT_EQ(done, all);
    EXPECT_EQ(report.text_bytes, all);
  }
}

TEST(Tokenize, DividesCompressedTextsByDocuments) {
  TemporaryFolder folder;
  auto options =
      tokenize_options(folder, {folder.write("a.txt", "text"), folder.write("b.txt.gz", gzip("more"))});
  options.validation_output = folder / "v.bin";
  options.validation_split = "end";
  expect_error(ErrorKind::kUsage, {"compressed files", "`validation_split` documents"},
               [&] { tokenize(options); });
  options.validation_split = "";
  options.validation_fraction = 0.5;
  for (options.seed = 0; options.seed < 100; ++options.seed) {  // until each document goes to another file
    try {
      tokenize(options);
      break;
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
    }
  }
  EXPECT_THAT((std::vector{tokenized_text(options.output), tokenized_text(options.validation_output)}),
              ::testing::UnorderedElementsAre("text", "more"));
}

TEST(Tokenize, LeavesOutAsManyBadRowsAsAreAllowed) {
  TemporaryFolder folder;
  const std::string lines =
      folder.write("a.jsonl", "{\"text\": \"a\"}\nno json\n{\"text\": \"b\"}\n{\"txt\": 1}\n");
  const std::string table =
      write_parquet(folder / "b.parquet", {{"text", column_of({"c", std::nullopt, "\xff", "d"})}});
  auto options = tokenize_options(folder, {lines, table});
  for (int threads : {1, 2}) {
    options.threads = threads;
    options.skip_bad = 4;
    const TokenizeReport report = tokenize(options);
    EXPECT_EQ(tokenized_text(options.output), "abcd");
    EXPECT_EQ(report.documents, 4);
    EXPECT_EQ(report.bad_rows.count(), 4);
    EXPECT_THAT(report.bad_rows.messages(),
                ::testing::ElementsAre(HasSubstr("line 2 of " + lines), HasSubstr("line 4 of " + lines),
                                       HasSubstr("row 2 of " + table), HasSubstr("row 3 of " + table)));
    options.skip_bad = 3;
    expect_error(ErrorKind::kData,
                 {"more than 3 rows", "`skip_bad`", "row 3 of " + table, "is not valid JSON"},
                 [&] { tokenize(options); });
    options.skip_bad = 0;
    expect_error(ErrorKind::kData, {"line 2 of " + lines}, [&] { tokenize(options); });
    options.texts = {table};
    expect_error(ErrorKind::kData, {"row 2 of " + table, "has a null"}, [&] { tokenize(options); });
    options.texts = {lines, table};
  }
}

/// Makes of each row as many documents as it has letters, of which the first is learnt as the last turn.
class LetterRows final : public RowEncoder {
 public:
  std::vector<std::string> columns() const override { return {"text"}; }

  std::string_view encode(std::string_view row, std::vector<int64_t>& ids,
                          std::vector<TokenPart>& parts) const override {
    bool first = true;
    for (const char c : nlohmann::json::parse(row)["text"].get<std::string>()) {
      if (c == '!') throw RowError("is loud");
      ids.insert(ids.end(), {c, c, c});
      parts.insert(parts.end(), {TokenPart::kDocumentStart, TokenPart::kContext,
                                 first ? TokenPart::kLastTurn : TokenPart::kAssistant});
      first = false;
    }
    return "letters";
  }
};

TEST(Tokenize, ARowMayBecomeSeveralDocuments) {
  const TemporaryFolder folder;
  std::string rows;
  for (char c = 'a'; c <= 'j'; ++c) rows += concat(R"({"text": ")", c, static_cast<char>(c + 10), "\"}\n");
  auto options = tokenize_options(folder, {folder.write("a.jsonl", rows + R"({"text": "x!"})")});
  options.format = TokenFormat::kMegatron;
  options.make_row_encoder = [](const Tokenizer&) { return std::make_unique<LetterRows>(); };
  options.skip_bad = 1;
  options.validation_output = folder / "out/validation.bin";
  options.validation_fraction = 0.5;
  const TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.documents_per_row, 2);
  EXPECT_EQ(report.documents + report.validation_documents, 20);
  EXPECT_EQ(report.assistant_tokens, report.documents);
  EXPECT_EQ(report.last_turn_tokens, report.documents / 2);
  EXPECT_EQ(report.validation_last_turn_tokens, report.validation_documents / 2);
  EXPECT_EQ(report.lengths.documents(), 20);
  EXPECT_EQ(report.lengths.longest(), 3);
  EXPECT_GT(report.documents, 2);
  EXPECT_GT(report.validation_documents, 2);
  // Both documents of a row are in the same output, one after the other.
  for (const std::string& output : {options.output, options.validation_output}) {
    const TokenFile file(output);
    const std::vector<int64_t> ids = tokenized_ids(output);
    ASSERT_EQ(file.documents() % 2, 0);
    for (int64_t i = 0; i < file.documents(); ++i) EXPECT_EQ(file.document_begin(i), 3 * i);
    for (size_t i = 0; i < ids.size(); i += 6) EXPECT_EQ(ids[i] + 10, ids[i + 3]);
  }
}

TEST(Tokenize, RowsOfAnOutputBecomeTheSameNumberOfDocuments) {
  const TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a.jsonl", R"({"text": "ab"})"),
                                           folder.write("b.jsonl", "{\"text\": \"cd\"}\n{\"text\": \"e\"}")});
  options.make_row_encoder = [](const Tokenizer&) { return std::make_unique<LetterRows>(); };
  expect_error(ErrorKind::kData, {"line 2 of", "b.jsonl is one answer, but the rows before it are pairs"},
               [&] { tokenize(options); });
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

TEST(Tokenize, RefusesALineWithoutAnEnd) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl.zst", repeated(zstd(std::string(16 << 20, '[')), 40));
  expect_error(ErrorKind::kData, {path, "; "}, [&] { tokenize(tokenize_options(folder, {path})); });
  EXPECT_FALSE(std::filesystem::exists(folder / "out/train.bin"));
}

TEST(Tokenize, RefusesATableWithoutTheColumnBeforeTheWork) {
  TemporaryFolder folder;
  auto options = tokenize_options(
      folder,
      {folder.write("a.txt", "text"), write_parquet(folder / "b.parquet", {{"content", column_of({"c"})}})});
  expect_error(ErrorKind::kData, {"b.parquet", "no column \"text\"", "content"}, [&] { tokenize(options); });
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  options.json_field = "content";
  tokenize(options);
  EXPECT_EQ(tokenized_text(options.output), "textc");
}

}  // namespace
}  // namespace fsdp::data
