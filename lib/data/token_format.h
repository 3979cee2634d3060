#pragma once

// The formats of token files. All are little-endian.
//
//   u16, u32     numbers of two or four bytes and nothing else (nanoGPT writes u16)
//   llm.c-u16    llm.c's files of GPT-2 tokens: 256 int32 (magic 20240520, version 1, number of tokens,
//   zeros),
//                then uint16
//   llm.c-u32    llm.c's files of Llama 3 tokens: the same with magic 20240801, version 7 and uint32
//   megatron     Megatron-LM's pair NAME.bin and NAME.idx: the tokens alone, and their documents
//   fairseq      fairseq's pair (dataset-impl mmap): as Megatron's, without documents above the sequences
//
// Sources of the layouts: llm.c dev/data/data_common.py, Megatron-LM
// megatron/core/datasets/indexed_dataset.py, fairseq fairseq/data/indexed_dataset.py.
//
// A file says its format itself: by its first bytes, by the .idx beside a .bin, or, as numbers of four bytes
// look like twice as many of two, by the name: .u32 is u32, and everything else is u16.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::data {

enum class TokenFormat { kU16, kU32, kLlmcU16, kLlmcU32, kMegatron, kFairseq };

/// How a token is stored.
enum class TokenType { kUint8, kInt8, kInt16, kInt32, kInt64, kUint16, kUint32, kUint64 };

std::string to_string(TokenFormat format);
std::vector<std::string> token_format_names();
/// Throws Error(kUsage) for a name that is none of token_format_names().
TokenFormat token_format(const std::string& name);

/// "uint16" and so on.
std::string to_string(TokenType type);
int64_t bytes_of(TokenType type);
/// The largest id that the type can hold, at most 2^32 - 1.
int64_t largest_id_of(TokenType type);

/// Whether the format keeps where documents end.
bool has_documents(TokenFormat format);

/// The extension that makes a flat file one of four bytes a token.
inline constexpr const char* kUint32Extension = ".u32";

/// llm.c's header.
struct LlmcHeader {
  static constexpr int64_t kBytes = 1024;  ///< 256 int32
  static constexpr int32_t kMagicU16 = 20240520, kVersionU16 = 1;
  static constexpr int32_t kMagicU32 = 20240801, kVersionU32 = 7;
  static constexpr int32_t kMagicEvaluation = 20240522;  ///< questions with answers, not a text
  int32_t magic = 0, version = 0, tokens = 0;
};

/// The index beside a Megatron or fairseq file.
inline constexpr char kIndexMagic[] = "MMIDIDX\0";  // nine bytes with the final zero
inline constexpr int64_t kIndexMagicBytes = 9;
inline constexpr uint64_t kIndexVersion = 1;
/// Path of the index of NAME.bin: NAME.idx.
std::filesystem::path index_path(const std::filesystem::path& tokens_path);
/// The dtype codes of the index; throws std::out_of_range for types that have none.
uint8_t index_code(TokenType type);

}  // namespace fsdp::data
