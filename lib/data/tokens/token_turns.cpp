#include "data/tokens/token_turns.h"

#include <cstring>
#include <string_view>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

constexpr std::string_view kMagic = "FSDPTURN";
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 40, kTokensPerByte = 4;
constexpr unsigned kBits = 2, kMask = 3;

int64_t bytes_for(int64_t tokens) { return (tokens + kTokensPerByte - 1) / kTokensPerByte; }

}  // namespace

std::filesystem::path turns_path(const std::filesystem::path& tokens_path) {
  std::filesystem::path path = tokens_path;
  path += ".turns";
  return path;
}

TurnsWriter::TurnsWriter(const std::filesystem::path& tokens_path) : file_(turns_path(tokens_path)) {
  const std::array<char, kHeaderBytes> room{};  // placeholder of the header, which finish() completes
  file_.append(room.data(), kHeaderBytes);
}

void TurnsWriter::append(const std::vector<TokenPart>& parts) {
  std::vector<uint8_t> bytes;
  for (const TokenPart part : parts) {
    const auto place = static_cast<unsigned>(tokens_ % kTokensPerByte);
    pending_ = static_cast<uint8_t>(pending_ | (static_cast<unsigned>(part) << (kBits * place)));
    ++counts_[static_cast<size_t>(part)];
    if (++tokens_ % kTokensPerByte == 0) {
      bytes.push_back(pending_);
      pending_ = 0;
    }
  }
  write(bytes);
}

void TurnsWriter::write(const std::vector<uint8_t>& bytes) {
  hash_.add(bytes.data(), bytes.size());
  file_.append(bytes.data(), static_cast<int64_t>(bytes.size()));
}

void TurnsWriter::finish(const TokenHash& tokens) {
  if (tokens_ % kTokensPerByte != 0) write({pending_});
  const std::array<uint64_t, 4> numbers = {kVersion, static_cast<uint64_t>(tokens_), tokens.value(),
                                           hash_.value()};
  file_.overwrite(0, kMagic.data(), static_cast<int64_t>(kMagic.size()));
  file_.overwrite(static_cast<int64_t>(kMagic.size()), numbers.data(), sizeof(numbers));
  file_.finish();
}

TokenTurns::TokenTurns(const std::filesystem::path& path, const std::string& tokens_path, int64_t tokens)
    : file_("companion", path.string()), tokens_path_(tokens_path), tokens_(tokens) {
  if (file_.size_bytes() < kHeaderBytes || std::string_view(file_.data(), kMagic.size()) != kMagic) {
    refuse("is not a companion of a file of conversations");
  }
  std::array<uint64_t, 4> numbers{};
  std::memcpy(numbers.data(), file_.data() + kMagic.size(), sizeof(numbers));
  if (numbers[0] != kVersion) refuse(concat("must have version ", kVersion, ", but has ", numbers[0]));
  if (numbers[1] != static_cast<uint64_t>(tokens)) {
    refuse(concat("is for ", numbers[1], " tokens, but there are ", tokens));
  }
  if (file_.size_bytes() != kHeaderBytes + bytes_for(tokens)) {
    refuse(concat("must have ", kHeaderBytes + bytes_for(tokens), " bytes, but has ", file_.size_bytes()));
  }
  TokenHash hash;
  const auto* bytes = reinterpret_cast<const uint8_t*>(file_.data() + kHeaderBytes);
  hash.add(bytes, static_cast<size_t>(bytes_for(tokens)));
  if (hash.value() != numbers[3]) refuse("is damaged: its hash is not that of its content");
  for (int64_t i = 0; i < tokens; ++i) ++counts_[static_cast<size_t>(at(i))];
  tokens_hash_ = numbers[2];
  hash_ = numbers[3];
}

void TokenTurns::check_tokens(const TokenHash& tokens) const {
  if (tokens.value() != tokens_hash_) refuse("was written for other tokens of the same number");
}

TokenPart TokenTurns::at(int64_t token) const {
  const auto byte = static_cast<uint8_t>(file_.data()[kHeaderBytes + token / kTokensPerByte]);
  return static_cast<TokenPart>((byte >> (kBits * static_cast<unsigned>(token % kTokensPerByte))) & kMask);
}

void TokenTurns::read(int64_t begin, int64_t count, TokenPart* out) const {
  FSDP_CHECK(begin >= 0 && count >= 0 && begin <= tokens_ - count, "tokens ", begin, " + ", count, " of ",
             tokens_);
  if (file_.current_size_bytes() < file_.size_bytes()) refuse("has become shorter since it was opened");
  for (int64_t i = 0; i < count; ++i) out[i] = at(begin + i);
}

void TokenTurns::refuse(const std::string& found) const {
  file_.refuse(concat(found, " (the tokens are in ", tokens_path_, ")"),
               "create or copy both again, or delete it if the tokens are not conversations");
}

}  // namespace fsdp::data
