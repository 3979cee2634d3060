#include "data/token_files.h"

#include <algorithm>

#include "util/error.h"

namespace fsdp::data {

TokenFiles::TokenFiles(const std::vector<std::string>& paths, std::optional<TokenFormat> told)
    : paths_(paths) {
  FSDP_CHECK(!paths_.empty(), "no token files");
  int64_t end = 0;
  for (const std::string& path : paths_) {
    files_.push_back(std::make_unique<TokenFile>(path, told));
    ends_.push_back(end += files_.back()->size());
  }
}

int64_t TokenFiles::largest_possible_id() const {
  int64_t largest = 0;
  for (const auto& file : files_) largest = std::max(largest, largest_id_of(file->type()));
  return largest;
}

int64_t TokenFiles::bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->size() * bytes_of(file->type());
  return bytes;
}

size_t TokenFiles::file_of(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
}

template <typename Visit>
void TokenFiles::for_each_part(int64_t begin, int64_t count, const Visit& visit) const {
  FSDP_CHECK(begin >= 0 && count >= 0 && begin <= size() - count, "tokens ", begin, " + ", count, " of ",
             size());
  for (size_t i = file_of(begin); count > 0; ++i) {
    int64_t here = std::min(count, ends_[i] - begin);
    visit(*files_[i], begin - (ends_[i] - files_[i]->size()), here);
    begin += here;
    count -= here;
  }
}

void TokenFiles::read(int64_t begin, int64_t count, int64_t* out) const {
  for_each_part(begin, count, [&out](const TokenFile& file, int64_t first, int64_t here) {
    file.read(first, here, out);
    out += here;
  });
}

void TokenFiles::release(int64_t begin, int64_t count) const {
  for_each_part(begin, count,
                [](const TokenFile& file, int64_t first, int64_t here) { file.release(first, here); });
}

TokenFiles::Position TokenFiles::locate(int64_t position) const {
  FSDP_CHECK(position >= 0 && position < size(), "token ", position, " of ", size());
  size_t i = file_of(position);
  return {paths_[i], position - (ends_[i] - files_[i]->size())};
}

void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids,
               int64_t vocab_size) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < vocab_size) continue;
    TokenFiles::Position where = files.locate(begin + i);
    util::fail(util::ErrorKind::kData, "token ", where.token, " of ", where.path, " has the id ", ids[i],
               " where ids below model.vocab_size = ", vocab_size,
               " were expected; set model.vocab_size to at least ", ids[i] + 1,
               " or tokenize the text with the tokenizer of the model");
  }
}

void check_all_ids(const TokenFiles& files, int64_t vocab_size) {
  constexpr int64_t kChunkTokens = 1 << 18;
  std::vector<int64_t> chunk(static_cast<size_t>(std::min(files.size(), kChunkTokens)));
  for (int64_t begin = 0; begin < files.size(); begin += kChunkTokens) {
    int64_t count = std::min(kChunkTokens, files.size() - begin);
    files.read(begin, count, chunk.data());
    files.release(begin, count);
    // The largest id first: a loop that the compiler turns into vector instructions.
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, chunk[static_cast<size_t>(i)]);
    if (largest >= vocab_size) check_ids(files, begin, count, chunk.data(), vocab_size);
  }
}

}  // namespace fsdp::data
