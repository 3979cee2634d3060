#include "data/tokens/token_format.h"

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {
namespace {

struct TypeFacts {
  TokenType type;
  const char* name;
  int64_t bytes, largest_id;
  uint8_t index_code;
};

/// Properties of each type, in the order of the enum.
constexpr TypeFacts kTypes[] = {
    {TokenType::kUint8, "uint8", 1, UINT8_MAX, 1},    {TokenType::kInt8, "int8", 1, INT8_MAX, 2},
    {TokenType::kInt16, "int16", 2, INT16_MAX, 3},    {TokenType::kInt32, "int32", 4, INT32_MAX, 4},
    {TokenType::kInt64, "int64", 8, UINT32_MAX, 5},   {TokenType::kUint16, "uint16", 2, UINT16_MAX, 8},
    {TokenType::kUint32, "uint32", 4, UINT32_MAX, 9}, {TokenType::kUint64, "uint64", 8, UINT32_MAX, 10},
};

const TypeFacts& facts_of(TokenType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

std::string to_string(TokenFormat format) { return util::name_of(format); }

std::vector<std::string> token_format_names() { return util::names_of_enum<TokenFormat>(); }

TokenFormat token_format(const std::string& name) {
  if (const auto format = util::parse_enum<TokenFormat>(name)) return *format;
  fail(ErrorKind::kUsage, "unknown token file format \"", name,
       "\"; expected one of: ", util::join(token_format_names(), ", "));
}

std::string to_string(TokenType type) { return facts_of(type).name; }

int64_t bytes_of(TokenType type) { return facts_of(type).bytes; }

int64_t largest_id_of(TokenType type) { return facts_of(type).largest_id; }

bool has_documents(TokenFormat format) {
  return format == TokenFormat::kMegatron || format == TokenFormat::kFairseq;
}

bool is_llmc(TokenFormat format) {
  return format == TokenFormat::kLlmcU16 || format == TokenFormat::kLlmcU32;
}

bool has_two_bytes(TokenFormat format) {
  return format == TokenFormat::kU16 || format == TokenFormat::kLlmcU16;
}

std::filesystem::path index_path(const std::filesystem::path& tokens_path) {
  std::filesystem::path path = tokens_path;
  return path.replace_extension(".idx");
}

uint8_t index_code(TokenType type) { return facts_of(type).index_code; }

std::optional<TokenType> type_of_index_code(int code) {
  for (const TypeFacts& facts : kTypes) {
    if (facts.index_code == code) return facts.type;
  }
  return std::nullopt;
}

}  // namespace fsdp::data
