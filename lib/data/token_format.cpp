#include "data/token_format.h"

#include <array>
#include <stdexcept>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::data {
namespace {

constexpr std::array kFormats = {TokenFormat::kU16,     TokenFormat::kU32,      TokenFormat::kLlmcU16,
                                 TokenFormat::kLlmcU32, TokenFormat::kMegatron, TokenFormat::kFairseq};

}  // namespace

std::string to_string(TokenFormat format) {
  switch (format) {
    case TokenFormat::kU16:
      return "u16";
    case TokenFormat::kU32:
      return "u32";
    case TokenFormat::kLlmcU16:
      return "llm.c-u16";
    case TokenFormat::kLlmcU32:
      return "llm.c-u32";
    case TokenFormat::kMegatron:
      return "megatron";
    case TokenFormat::kFairseq:
      return "fairseq";
  }
  return "";
}

std::vector<std::string> token_format_names() {
  std::vector<std::string> names;
  for (TokenFormat format : kFormats) names.push_back(to_string(format));
  return names;
}

TokenFormat token_format(const std::string& name) {
  for (TokenFormat format : kFormats) {
    if (to_string(format) == name) return format;
  }
  util::fail(util::ErrorKind::kUsage, "unknown token file format \"", name,
             "\"; expected one of: ", util::join(token_format_names(), ", "));
}

std::string to_string(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kUint32:
      return "uint32";
    case TokenType::kUint64:
      return "uint64";
  }
  return "";
}

int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kUint32:
      return 4;
    case TokenType::kInt64:
    case TokenType::kUint64:
      return 8;
  }
  return 0;
}

int64_t largest_id_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return UINT8_MAX;
    case TokenType::kInt8:
      return INT8_MAX;
    case TokenType::kInt16:
      return INT16_MAX;
    case TokenType::kUint16:
      return UINT16_MAX;
    case TokenType::kInt32:
      return INT32_MAX;
    case TokenType::kUint32:
    case TokenType::kInt64:
    case TokenType::kUint64:
      return UINT32_MAX;
  }
  return 0;
}

bool has_documents(TokenFormat format) {
  return format == TokenFormat::kMegatron || format == TokenFormat::kFairseq;
}

std::filesystem::path index_path(const std::filesystem::path& tokens_path) {
  std::filesystem::path path = tokens_path;
  return path.replace_extension(".idx");
}

uint8_t index_code(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return 1;
    case TokenType::kInt8:
      return 2;
    case TokenType::kInt16:
      return 3;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 5;
    case TokenType::kUint16:
      return 8;
    case TokenType::kUint32:
      return 9;
    case TokenType::kUint64:
      return 10;
  }
  throw std::out_of_range("no dtype code");
}

}  // namespace fsdp::data
