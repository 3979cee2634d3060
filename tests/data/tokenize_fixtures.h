#pragma once

// Options for tokenizing in a temporary folder, and what has come out.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/texts/tokenize.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/token_files.h"
#include "support/source_folder.h"

namespace fsdp::data {

inline const std::string kGpt2Kind = testing::source_folder() + "/tests/data/bpe/gpt2_kind.json";

inline std::vector<int64_t> tokenized_ids(const std::string& path) {
  TokenFiles files({path});
  std::vector<int64_t> ids(static_cast<size_t>(files.size()));
  files.read(0, files.size(), ids.data());
  return ids;
}

inline std::string tokenized_text(const std::string& path) {
  return make_tokenizer("bytes")->decode(tokenized_ids(path));
}

inline TokenizeOptions tokenize_options(const testing::TemporaryFolder& folder,
                                        std::vector<std::string> texts) {
  TokenizeOptions options;
  options.texts = std::move(texts);
  options.output = folder / "out/train.bin";
  return options;
}

}  // namespace fsdp::data
