// Every file of the committed corpora through its fuzz target: the seeds are read or refused, and what a
// fuzzer once found stays fixed.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/util/file.h"
#include "fuzz/targets.h"

namespace fsdp::fuzz {
namespace {

void replay(const std::string& name, int (*target)(const uint8_t*, size_t)) {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(FSDP_FUZZ_CORPUS "/" + name)) {
    SCOPED_TRACE(file.path().string());
    std::string bytes = util::read_file(file.path());
    EXPECT_EQ(target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
    ++files;
  }
  EXPECT_GE(files, 3);
}

TEST(FuzzCorpus, Json) { replay("json", json); }
TEST(FuzzCorpus, Safetensors) { replay("safetensors", safetensors); }
TEST(FuzzCorpus, GgufFile) { replay("gguf_file", gguf_file); }
TEST(FuzzCorpus, Manifest) { replay("manifest", manifest); }
TEST(FuzzCorpus, ShardFile) { replay("shard_file", shard_file); }
TEST(FuzzCorpus, TokenFile) { replay("token_file", token_file); }
TEST(FuzzCorpus, TokenizerJson) { replay("tokenizer_json", tokenizer_json); }
TEST(FuzzCorpus, TextInput) { replay("text_input", text_input); }
TEST(FuzzCorpus, Parquet) { replay("parquet", parquet); }
TEST(FuzzCorpus, ArchiveRows) { replay("archive_rows", archive_rows); }
TEST(FuzzCorpus, DcpMetadata) { replay("dcp_metadata", dcp_metadata); }
TEST(FuzzCorpus, TorchObject) { replay("torch_object", torch_object); }
TEST(FuzzCorpus, SentencePieceModel) { replay("sentencepiece_model", sentencepiece_model); }
TEST(FuzzCorpus, RankVocabulary) { replay("rank_vocabulary", rank_vocabulary); }
TEST(FuzzCorpus, ConfigToml) { replay("config_toml", config_toml); }
TEST(FuzzCorpus, ForeignConfig) { replay("foreign_config", foreign_config); }
TEST(FuzzCorpus, ModelConfig) { replay("model_config", model_config); }
TEST(FuzzCorpus, RunFolder) { replay("run_folder", run_folder); }

}  // namespace
}  // namespace fsdp::fuzz
