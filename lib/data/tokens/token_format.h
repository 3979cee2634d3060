#pragma once

// The formats of token files. All are little-endian.
//
//   u16, u32     numbers of two or four bytes and nothing else (nanoGPT writes u16)
//   llm.c-u16    llm.c's files of GPT-2 tokens: 256 int32 (magic 20240520, version 1, number of tokens, then
//                zeros), then uint16
//   llm.c-u32    llm.c's files of Llama 3 tokens: the same with magic 20240801, version 7 and uint32
//   megatron     Megatron-LM's pair: NAME.bin with the tokens alone, NAME.idx with their documents
//   fairseq      fairseq's pair (dataset-impl mmap): as Megatron's, but each sequence is a document
//
// Sources of the layouts: llm.c dev/data/data_common.py, Megatron-LM
// megatron/core/datasets/indexed_dataset.py, fairseq fairseq/data/indexed_dataset.py.
//
// The format is recognised by a file's first bytes or by the .idx beside a .bin. Otherwise the name decides,
// since numbers of four bytes look like twice as many of two: .u32 is u32, and everything else is u16.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::data {

enum class TokenFormat { kU16, kU32, kLlmcU16, kLlmcU32, kMegatron, kFairseq };
constexpr auto enum_names(TokenFormat) {
  return std::to_array<util::EnumName<TokenFormat>>({{TokenFormat::kU16, "u16"},
                                                     {TokenFormat::kU32, "u32"},
                                                     {TokenFormat::kLlmcU16, "llm.c-u16"},
                                                     {TokenFormat::kLlmcU32, "llm.c-u32"},
                                                     {TokenFormat::kMegatron, "megatron"},
                                                     {TokenFormat::kFairseq, "fairseq"}});
}

/// How a token is stored.
enum class TokenType { kUint8, kInt8, kInt16, kInt32, kInt64, kUint16, kUint32, kUint64 };

std::string to_string(TokenFormat format);
std::vector<std::string> token_format_names();
/// Parses the name of a format. Throws Error(kUsage) for a name that is not in token_format_names().
TokenFormat token_format(const std::string& name);

/// Returns "uint16" and so on.
std::string to_string(TokenType type);
int64_t bytes_of(TokenType type);
/// Returns the largest id that the type can hold, at most 2^32 - 1.
int64_t largest_id_of(TokenType type);

/// Whether the format records where documents end.
bool has_documents(TokenFormat format);
/// Whether the format is one of llm.c's.
bool is_llmc(TokenFormat format);
/// Whether the format is u16 or llm.c-u16, which store every token in two bytes.
bool has_two_bytes(TokenFormat format);

/// Extension of flat files with four bytes per token.
inline constexpr const char* kUint32Extension = ".u32";

/// llm.c's header.
struct LlmcHeader {
  static constexpr int64_t kBytes = 1024;  ///< 256 int32
  static constexpr int32_t kMagicU16 = 20240520, kVersionU16 = 1;
  static constexpr int32_t kMagicU32 = 20240801, kVersionU32 = 7;
  static constexpr int32_t kMagicEvaluation = 20240522;  ///< questions with answers, not a text
  int32_t magic = 0, version = 0, tokens = 0;
};

/// Magic number of the index beside a Megatron or fairseq file.
inline constexpr char kIndexMagic[] = "MMIDIDX\0";  // nine bytes with the final zero
inline constexpr int64_t kIndexMagicBytes = 9;
inline constexpr uint64_t kIndexVersion = 1;
/// Returns the path of the index of NAME.bin: NAME.idx.
std::filesystem::path index_path(const std::filesystem::path& tokens_path);
/// Returns the dtype code of a type in the index.
uint8_t index_code(TokenType type);
/// Returns the type of a dtype code; nothing for a code that is not an integer type.
std::optional<TokenType> type_of_index_code(int code);

}  // namespace fsdp::data
