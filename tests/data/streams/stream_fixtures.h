#pragma once

// Folders of texts of all kinds, streams of them, and the same tokens as fsdp-data tokenize writes them.

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "data/compressed_fixtures.h"
#include "data/parquet_fixtures.h"
#include "data/streams/token_stream.h"
#include "data/texts/tokenize.h"
#include "data/tokenize_fixtures.h"
#include "data/tokens/documents.h"

namespace fsdp::data {

/// Words of a small vocabulary, at least so many bytes.
inline std::string prose(size_t bytes, unsigned seed) {
  static const std::vector<std::string> kWords = {"the ",     "river ",    "runs ",  "below ",
                                                  "1,024 ",   "houses;\n", "naïve ", "東京 ",
                                                  "x+=1\n\n", "don't ",    "Hello, "};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) text += kWords[random() % kWords.size()];
  return text;
}

inline std::string json_lines(int rows, size_t bytes, unsigned seed) {
  std::string text;
  for (int i = 0; i < rows; ++i) {
    const nlohmann::json row = {{"id", i},
                                {"text", prose(bytes + static_cast<size_t>(i % 7) * 20, seed + i)}};
    text += row.dump() + (i % 5 == 0 ? "\n\n" : "\n");
  }
  return text;
}

/// Texts of some hundred KiB each: plain, JSON lines, compressed, an array and a table.
inline std::vector<std::string> texts_of_all_kinds(const testing::TemporaryFolder& folder) {
  std::vector<std::optional<std::string>> column;
  for (unsigned i = 0; i < 400; ++i) column.emplace_back(prose(900, 5000 + i));
  nlohmann::json array = nlohmann::json::array();
  for (unsigned i = 0; i < 700; ++i) array.push_back({{"text", prose(800, 9000 + i)}});
  return {folder.write("book.txt", prose(900'000, 1)),
          folder.write("web.jsonl", json_lines(900, 1000, 100)),
          folder.write("web.jsonl.zst", zstd(json_lines(800, 900, 2000)) + zstd(json_lines(300, 900, 3000))),
          folder.write("note.txt.gz", gzip(prose(700'000, 4))),
          folder.write("array.jsonl", array.dump(1)),
          write_parquet(folder / "table.parquet", {{"text", column_of(column)}}, /*rows_per_group=*/60)};
}

inline StreamOptions stream_of(std::vector<std::string> files, const std::filesystem::path& cache) {
  return {.files = std::move(files),
          .tokenizer = kGpt2Kind,
          .folder = cache,
          .ahead_tokens = 50'000,
          .block_tokens = 20'000,
          .threads = 2};
}

/// The tokens of the texts as `fsdp-data tokenize` joins them, and where documents begin.
struct Materialised {
  std::vector<int64_t> ids = {}, starts = {};
};
inline Materialised materialised(const testing::TemporaryFolder& folder,
                                 const std::vector<std::string>& files, const std::string& separator = "") {
  TokenizeOptions options;
  options.texts = files;
  options.output = folder / "materialised.bin";
  options.tokenizer = kGpt2Kind;
  options.format = TokenFormat::kMegatron;
  options.document_separator = separator;
  tokenize(options);
  Materialised result{.ids = tokenized_ids(options.output)};
  const TokenFiles tokens({options.output});
  for (int64_t i = 0; i < tokens.file(0).documents(); ++i)
    result.starts.push_back(tokens.file(0).document_begin(i));
  return result;
}

inline std::vector<int64_t> ids_of(TokenStream& stream, int64_t pass, int64_t begin, int64_t count,
                                   std::vector<int64_t>* starts = nullptr) {
  std::vector<int64_t> ids(static_cast<size_t>(count)), own;
  stream.look_ahead(pass, begin);
  stream.read(pass, begin, count, ids.data(), starts != nullptr ? *starts : own);
  return ids;
}

}  // namespace fsdp::data
