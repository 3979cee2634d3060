#include "data/streams/token_block.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/hash.h"
#include "base/util/regular_file.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

struct BlockHeader {
  char magic[8] = {'F', 'S', 'D', 'P', 'B', 'L', 'K', '1'};
  uint32_t token_bytes = 0, starts = 0;
  uint64_t tokens = 0, hash = 0;
};
static_assert(sizeof(BlockHeader) == 32);

template <typename Stored>
void append_tokens(std::string& bytes, const std::vector<uint32_t>& tokens) {
  const size_t before = bytes.size();
  bytes.resize(before + tokens.size() * sizeof(Stored));
  auto* const to = reinterpret_cast<Stored*>(bytes.data() + before);  // multiples of four bytes precede it
  std::ranges::transform(tokens, to, [](uint32_t token) { return static_cast<Stored>(token); });
}

}  // namespace

int64_t write_block(const fs::path& path, const BlockContent& content) {
  const uint32_t largest = content.tokens.empty() ? 0 : std::ranges::max(content.tokens);
  BlockHeader header;
  header.token_bytes = largest < 1u << 16 ? 2 : 4;
  header.starts = static_cast<uint32_t>(content.starts.size());
  header.tokens = content.tokens.size();
  std::string bytes(sizeof header, '\0');
  bytes.append(reinterpret_cast<const char*>(content.starts.data()),
               content.starts.size() * sizeof(uint32_t));
  if (header.token_bytes == 2) {
    append_tokens<uint16_t>(bytes, content.tokens);
  } else {
    append_tokens<uint32_t>(bytes, content.tokens);
  }
  header.hash = util::xxh3_64(bytes.data() + sizeof header, bytes.size() - sizeof header);
  std::memcpy(bytes.data(), &header, sizeof header);
  const fs::path temporary = util::temporary_name(path);
  const util::Descriptor file(util::create_own_file(temporary));
  if (!file.is_open()) {
    fail(ErrorKind::kIo, "cannot create ", temporary.string(), " (", util::errno_text(errno),
         "); set FSDP_CACHE_DIR to a folder with enough room that you may write to");
  }
  try {
    util::write_all(file.get(), bytes, temporary);
    fs::rename(temporary, path);
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::kIo, "cannot rename ", temporary.string(), " (", error.code().message(),
         "); check the disk");
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  return static_cast<int64_t>(bytes.size());
}

std::shared_ptr<const TokenBlock> TokenBlock::open(const fs::path& path, int64_t tokens) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return nullptr;
  try {
    std::shared_ptr<TokenBlock> block(new TokenBlock(path));
    if (block->check(tokens)) return block;
  } catch (const util::Error&) {
    // Another process has removed it.
  }
  return nullptr;
}

bool TokenBlock::check(int64_t tokens) {
  BlockHeader header, expected;
  if (file_.size_bytes() < static_cast<int64_t>(sizeof header)) return false;
  std::memcpy(&header, file_.data(), sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0) return false;
  if ((header.token_bytes != 2 && header.token_bytes != 4) ||
      header.tokens != static_cast<uint64_t>(tokens)) {
    return false;
  }
  const uint64_t starts = header.starts * sizeof(uint32_t);
  const uint64_t bytes = sizeof header + starts + header.tokens * header.token_bytes;
  if (static_cast<uint64_t>(file_.size_bytes()) != bytes) return false;
  if (util::xxh3_64(file_.data() + sizeof header, bytes - sizeof header) != header.hash) return false;
  token_bytes_ = header.token_bytes;
  tokens_ = tokens;
  starts_ = {reinterpret_cast<const uint32_t*>(file_.data() + sizeof header), header.starts};
  first_token_ = file_.data() + sizeof header + starts;
  return true;
}

void TokenBlock::read(int64_t begin, int64_t count, int64_t* out) const {
  FSDP_CHECK(begin >= 0 && count >= 0 && begin + count <= tokens_, "tokens ", begin, " + ", count, " of ",
             tokens_);
  const auto copy = [&]<typename Stored>(const Stored* from) { std::copy_n(from + begin, count, out); };
  if (token_bytes_ == 2) {
    copy(reinterpret_cast<const uint16_t*>(first_token_));
  } else {
    copy(reinterpret_cast<const uint32_t*>(first_token_));
  }
}

std::vector<int64_t> TokenBlock::starts_in(int64_t begin, int64_t count) const {
  const auto first = std::ranges::lower_bound(starts_, static_cast<uint32_t>(begin));
  const auto last = std::ranges::lower_bound(starts_, static_cast<uint32_t>(begin + count));
  return {first, last};
}

}  // namespace fsdp::data
