#include "data/tokenizers/sentencepiece_model.h"

#include <algorithm>
#include <limits>
#include <random>

#include "base/util/file.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/sentencepiece_tokenizer.h"
#include "support/source_folder.h"

namespace fsdp::data {
namespace {

using PieceKind = SentencePieceModel::PieceKind;

const std::string kCorpus = testing::source_folder() + "/tests/fuzz/corpus/sentencepiece_model/";

std::string stored(const std::string& name) { return util::read_file(kCorpus + name); }

std::vector<int64_t> ids_of(const SentencePieceModel& model, std::string_view text) {
  Vocabulary vocabulary;
  vocabulary.source = "m";
  std::vector<int64_t> ids;
  make_sentencepiece_tokenizer(model, vocabulary)->encode(text, ids);
  return ids;
}

TEST(SentencePieceModelFile, IsTheSameWhenItIsWrittenAnew) {
  for (const char* name : {"trained_unigram", "trained_bpe"}) {
    const SentencePieceModel model = parse_sentencepiece_model(stored(name), "m");
    const SentencePieceModel again = parse_sentencepiece_model(model.serialized(), "m");
    EXPECT_EQ(again.serialized(), model.serialized());
    EXPECT_EQ(again.pieces.size(), model.pieces.size());
    EXPECT_EQ(again.character_map, model.character_map);
    const std::string text = "the \u212bngstr\u00f6m \uff21 \u2460 <tag> x";
    EXPECT_EQ(ids_of(again, text), ids_of(model, text));
  }
}

// libsentencepiece follows the trie of such a map out of its memory.
TEST(SentencePieceModelFile, WithADamagedMapIsRefused) {
  expect_error(ErrorKind::kData, {"the tokenizer m", "precompiled_charsmap", "damaged"},
               [] { parse_sentencepiece_model(stored("onebit"), "m"); });
}

TEST(SentencePieceModelFile, ThatTheLibraryCouldFailOnIsRefused) {
  const SentencePieceModel good = parse_sentencepiece_model(stored("trained_bpe"), "m");
  const auto refused = [&](const std::string& part, const auto& change) {
    SentencePieceModel model = good;
    change(model);
    SCOPED_TRACE(part);
    expect_error(ErrorKind::kData, {"the tokenizer m is not a SentencePiece model", part},
                 [&] { parse_sentencepiece_model(model.serialized(), "m"); });
  };
  refused("no pieces", [](auto& model) { model.pieces.clear(); });
  refused("empty piece", [](auto& model) { model.pieces.back().text = ""; });
  refused("more than 1024", [](auto& model) { model.pieces.back().text = std::string(1025, 'x'); });
  refused("UTF-8", [](auto& model) { model.pieces.back().text = "\xff"; });
  refused("UTF-8", [](auto& model) { model.pieces.back().text = std::string("a\0b", 3); });
  refused("not a number",
          [](auto& model) { model.pieces.back().score = std::numeric_limits<float>::quiet_NaN(); });
  refused("occurs twice", [](auto& model) { model.pieces.push_back(model.pieces.back()); });
  refused("0 pieces for unknown", [](auto& model) { model.pieces.erase(model.pieces.begin()); });
  refused("2 pieces for unknown", [](auto& model) { model.pieces.back().kind = PieceKind::kUnknown; });
  refused("bytes that it falls back to", [](auto& model) { model.byte_fallback = false; });
  refused("does not have all", [](auto& model) {
    std::erase_if(model.pieces, [](const auto& piece) { return piece.text == "<0x41>"; });
  });
}

/// Every one of these crashed the library, or was refused by it; none may do anything but be refused or read.
TEST(SentencePieceModelFile, WithAnyBytesChangedIsRefusedOrRead) {
  std::mt19937 random(3);
  int read = 0;
  for (const char* name : {"trained_unigram", "trained_bpe"}) {
    const std::string good = stored(name);
    for (int i = 0; i < 1500; ++i) {
      std::string bytes = good;
      for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
        const size_t place = random() % bytes.size();
        if (random() % 4 == 0) {
          bytes.erase(place, 1 + random() % 8);
        } else {
          bytes[place] = static_cast<char>(bytes[place] ^ 1 << random() % 8);
        }
      }
      try {
        ids_of(parse_sentencepiece_model(bytes, "m"), "the \u212b \uff21 e\u0301 <tag>\U0001f600 12\n");
        ++read;
      } catch (const util::Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
      }
    }
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace fsdp::data
