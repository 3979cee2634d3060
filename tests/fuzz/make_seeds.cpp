// Writes the first seeds of the corpora: make_seeds FOLDER. Files that a fuzzer found are added by hand.

#include <ATen/Functions.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/util/file.h"
#include "base/util/shape.h"
#include "data/compressed_fixtures.h"
#include "data/parquet_fixtures.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/sentencepiece_model.h"
#include "data/tokenizers/vocabulary.h"
#include "data/tokens/token_format.h"
#include "state/gguf_export/writer.h"
#include "state/manifest/manifest.h"
#include "state/weights/safetensors.h"
#include "state/weights/shard_file.h"

namespace fs = std::filesystem;
using namespace fsdp::checkpoint;

namespace {

/// A shard file of whole tensors.
void write_shard(const fs::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<DatasetSpec> datasets;
  for (const auto& [name, tensor] : tensors) datasets.push_back({name, tensor.scalar_type(), tensor.numel()});
  ShardFileWriter file(path, datasets);
  for (const auto& [name, tensor] : tensors) file.write(name, 0, tensor.numel(), tensor.const_data_ptr());
  file.finish();
}

void write_safetensors(const fs::path& path, const std::vector<TensorInfo>& infos) {
  SafetensorsWriter writer(path, infos);
  for (const TensorInfo& info : writer.infos()) {
    int64_t numel = util::checked_numel(info.shape, 1);
    std::string bytes(static_cast<size_t>(numel) * c10::elementSize(info.dtype), 'x');
    writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  writer.finish();
}

void write_gguf(const fs::path& path, const fsdp::gguf::Metadata& metadata,
                std::vector<fsdp::gguf::Tensor> tensors) {
  fsdp::gguf::Writer writer(path, metadata, std::move(tensors));
  for (const fsdp::gguf::Tensor& tensor : writer.tensors()) {
    const std::string bytes(static_cast<size_t>(fsdp::gguf::bytes_of(tensor)), 'x');
    writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  writer.finish();
}

Manifest small_manifest(int64_t world_size) {
  Manifest manifest{.step = 7, .world_size = world_size, .layout = "flat"};
  for (int64_t rank = 0; rank < world_size; ++rank) {
    manifest.files.push_back({"rank" + std::to_string(rank) + ".h5", 4096, "0123456789abcdef"});
  }
  for (const char* name : {"model/a.weight", "optimizer/a.weight/exp_avg"}) {
    TensorEntry entry{.shape = {2, 3}, .dtype = at::kFloat};
    for (int64_t rank = 0; rank < world_size; ++rank) {
      entry.ranges.push_back(
          {.part = {6 * rank / world_size, 6 * (rank + 1) / world_size}, .file = static_cast<size_t>(rank)});
    }
    manifest.tensors.emplace(name, entry);
  }
  manifest.training = {{"samples", 28}, {"loss_scaler", {{"scale", 65536.0}, {"growth_tracker", 3}}}};
  manifest.model = {{"model_type", "llama"}, {"hidden_size", 2}};
  return manifest;
}

template <typename Number>
void put(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// What token_file_fuzz.cpp reads: the number of bytes of tokens, tokens, index.
std::string token_pair(bool megatron, fsdp::data::TokenType type) {
  auto width = static_cast<size_t>(fsdp::data::bytes_of(type));
  std::string bytes(1, static_cast<char>(6 * width));
  bytes += std::string(6 * width, '\1');
  bytes.append(fsdp::data::kIndexMagic, 9);
  put(bytes, fsdp::data::kIndexVersion);
  put(bytes, fsdp::data::index_code(type));
  put(bytes, uint64_t{3});
  if (megatron) put(bytes, uint64_t{3});
  for (int32_t length : {2, 1, 3}) put(bytes, length);
  for (size_t begin : {0, 2, 3}) put(bytes, static_cast<int64_t>(begin * width));
  for (int64_t document : {0, 2, 3}) {
    if (megatron) put(bytes, document);
  }
  return bytes;
}

std::string llmc_file(int32_t magic, int32_t version, size_t token_bytes) {
  std::string bytes;
  put(bytes, magic);
  put(bytes, version);
  put(bytes, int32_t{2});
  bytes.resize(1024 + 2 * token_bytes);
  return bytes;
}

nlohmann::json small_tokenizer() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[fsdp::data::byte_symbol(static_cast<unsigned char>(byte))] = byte;
  }
  vocabulary["th"] = 256;
  vocabulary["the"] = 257;
  nlohmann::json tokenizer;
  tokenizer["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"t h", "th e"}}};
  tokenizer["added_tokens"] = {{{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}}};
  tokenizer["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return tokenizer;
}

/// Vocabularies of the bytes, "th" and "the".
template <typename Write>
void write_rank_seeds(const Write& write) {
  nlohmann::json vocabulary = nlohmann::json::array();
  std::string lines;
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t byte = 0; byte < 258; ++byte) {
    std::string base64 = byte == 256 ? "dGg=" : "dGhl";
    if (byte < 256) base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    vocabulary.push_back({{"rank", byte}, {"token_bytes", base64}});
    lines += base64 + " " + std::to_string(byte) + "\n";
  }
  write("rank_vocabulary/tiktoken", lines);
  nlohmann::json tekken;
  tekken["config"] = {{"pattern", "\\p{L}+|\\s+(?!\\S)|\\s+"},
                      {"default_vocab_size", 262},
                      {"default_num_special_tokens", 4}};
  tekken["vocab"] = vocabulary;
  write("rank_vocabulary/tekken", tekken.dump());
  tekken["special_tokens"] = {{{"rank", 0}, {"token_str", "<unk>"}}, {{"rank", 1}, {"token_str", "<s>"}}};
  write("rank_vocabulary/tekken_special", tekken.dump());

  using Kind = fsdp::data::SentencePieceModel::PieceKind;
  fsdp::data::SentencePieceModel model;
  model.pieces = {{"<unk>", 0, Kind::kUnknown},
                  {"<s>", 0, Kind::kControl},
                  {"</s>", 0, Kind::kControl},
                  {"\u2581", -1},
                  {"t", -2},
                  {"h", -3},
                  {"th", -0.5F},
                  {"<tag>", 0, Kind::kUserDefined},
                  {"x", -9, Kind::kUnused}};
  write("sentencepiece_model/unigram", model.serialized());
  model.type = fsdp::data::SentencePieceModel::Type::kBpe;
  model.adds_blank = false;
  write("sentencepiece_model/bpe", model.serialized());
}

void write_data_seeds(const fs::path& folder) {
  auto write = [&folder](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  };
  write("token_file/megatron", token_pair(true, fsdp::data::TokenType::kUint16));
  write("token_file/megatron_int32", token_pair(true, fsdp::data::TokenType::kInt32));
  write("token_file/fairseq", token_pair(false, fsdp::data::TokenType::kUint32));
  write("token_file/llmc_u16", llmc_file(20240520, 1, 2));
  write("token_file/llmc_u32", llmc_file(20240801, 7, 4));
  nlohmann::json tokenizer = small_tokenizer();
  write("tokenizer_json/gpt2_kind", tokenizer.dump());
  tokenizer["model"]["ignore_merges"] = true;
  tokenizer["model"]["merges"] = {{"t", "h"}, {"th", "e"}};
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  write("tokenizer_json/llama3_kind", tokenizer.dump());
  tokenizer["normalizer"] = {{"type", "NFC"}};
  write("tokenizer_json/refused", tokenizer.dump());

  write_rank_seeds(write);

  const std::string text = "{\"text\": \"a document\"}\n{\"text\": \"another\"}\n";
  write("text_input/plain", text);
  write("text_input/gzip", fsdp::data::gzip(text) + fsdp::data::gzip(text));
  write("text_input/zstd", fsdp::data::zstd(text) + fsdp::data::zstd(text));
  write("text_input/cut", fsdp::data::gzip(text).substr(0, 30));
  const auto column = fsdp::data::column_of({"a document", std::nullopt, "another"});
  for (const auto& [name, compression] : {std::pair{"plain", parquet::Compression::UNCOMPRESSED},
                                          {"snappy", parquet::Compression::SNAPPY},
                                          {"gzip", parquet::Compression::GZIP},
                                          {"zstd", parquet::Compression::ZSTD}}) {
    fsdp::data::write_parquet(folder / "parquet" / name, {{"text", column}}, 2, compression);
  }
  fsdp::data::write_parquet(folder / "parquet/messages", {{"messages", fsdp::data::messages_column(3)}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_seeds FOLDER\n";
    return 2;
  }
  fs::path folder = argv[1];
  for (const char* target :
       {"safetensors", "gguf_file", "manifest", "shard_file", "token_file", "tokenizer_json", "text_input",
        "parquet", "rank_vocabulary", "sentencepiece_model"})
    fs::create_directories(folder / target);

  write_safetensors(folder / "safetensors/empty", {});
  write_safetensors(folder / "safetensors/one", {{"a", {2, 3}, at::kFloat}});
  write_safetensors(
      folder / "safetensors/types",
      {{"a", {2}, at::kFloat}, {"b", {3}, at::kBFloat16}, {"c", {}, at::kHalf}, {"d", {0, 4}, at::kLong}});

  using fsdp::gguf::TensorType;
  write_gguf(folder / "gguf_file/empty", {}, {});
  write_gguf(folder / "gguf_file/types", {{"general.alignment", 32U}},
             {{.name = "a", .shape = {2, 32}, .type = TensorType::kQ8_0},
              {.name = "b", .shape = {32}, .type = TensorType::kQ4_0},
              {.name = "c", .shape = {3}, .type = TensorType::kF16},
              {.name = "d", .shape = {1, 2, 3}, .type = TensorType::kBF16}});
  std::vector<fsdp::gguf::Tensor> quantised;
  for (const auto& [type, name] : enum_names(TensorType{})) {
    if (fsdp::gguf::is_quantised(type)) quantised.push_back({std::string(name), {1, 256}, type});
  }
  write_gguf(folder / "gguf_file/quantised", {}, quantised);
  write_gguf(folder / "gguf_file/metadata",
             {{"general.architecture", std::string("llama")},
              {"a", 0.5F},
              {"b", true},
              {"c", std::vector<std::string>{"x", "", "yz"}},
              {"d", std::vector<float>{1, 2}},
              {"e", std::vector<int32_t>{-1}}},
             {{.name = "a", .shape = {2, 2}}});

  for (int64_t world : {1, 2, 5}) {
    std::ofstream(folder / "manifest" / ("world" + std::to_string(world)))
        << manifest_text(small_manifest(world));
  }
  Manifest by_rule = small_manifest(18);
  for (auto& [name, entry] : by_rule.tensors) {
    // Columns of two rows, then rows of them: nine files and two copies of these.
    entry = {.shape = {2, 9},
             .ranges = {{.part = {0, 1, 2, 0, 1}, .file = 0, .repeats = {{9, 1, 1, 0}, {2, 9, 0, 1}}}},
             .rows = 2};
  }
  complete_manifest(by_rule, "the seed");
  std::ofstream(folder / "manifest/by_rule") << manifest_text(by_rule);
  Manifest in_rows = small_manifest(2);
  in_rows.tensors.at("model/a.weight") = {.shape = {2, 3},
                                          .ranges = {{.part = {0, 2, 2, 0, 1}, .file = 0},
                                                     {.part = {2, 3, 2}, .file = 1},
                                                     {.part = {0, 2, 2, 1, 2}, .file = 1}},
                                          .rows = 2};
  std::ofstream(folder / "manifest/in_rows") << manifest_text(in_rows);

  at::Tensor six = at::arange(6, at::kFloat), five = at::arange(5, at::kFloat).to(at::kBFloat16);
  write_shard(folder / "shard_file/all",
              {{"model/a.weight", six}, {"model/b.weight", five}, {"optimizer/a.weight/exp_avg", six}});
  write_shard(folder / "shard_file/other_type", {{"model/a.weight", six.to(at::kDouble)}});
  write_shard(folder / "shard_file/other_size", {{"model/a.weight", at::cat({six, six})}});
  write_data_seeds(folder);
  return 0;
}
