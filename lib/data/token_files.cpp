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

namespace {

/// Above the vocabularies there are by a factor of four.
constexpr int64_t kLargestPlausibleId = int64_t{1} << 20;

}  // namespace

std::string remedy_for_id(int64_t id) {
  if (id <= kLargestPlausibleId) {
    return util::concat(
        "tokenize the text with the tokenizer of the model, or set model.vocab_size to the "
        "number of tokens of the tokenizer that made the file (at least ",
        id + 1, ")");
  }
  return "no vocabulary is so large, so the file holds something else than tokens of the width that its name "
         "says; make it anew with fsdp-data tokenize, or with fsdp-data convert --input-format";
}

void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids,
               int64_t vocab_size) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < vocab_size) continue;
    TokenFiles::Position where = files.locate(begin + i);
    util::fail(util::ErrorKind::kData, "token ", where.token, " of ", where.path, " has the id ", ids[i],
               " where ids below model.vocab_size = ", vocab_size, " were expected; ", remedy_for_id(ids[i]));
  }
}

namespace {

/// Calls visit(begin, count, ids, largest id) for the tokens before `end`, some at a time.
template <typename Visit>
void for_each_chunk(const TokenFiles& files, int64_t end, const Visit& visit) {
  constexpr int64_t kChunkTokens = 1 << 18;
  std::vector<int64_t> chunk(static_cast<size_t>(std::min(end, kChunkTokens)));
  for (int64_t begin = 0; begin < end; begin += kChunkTokens) {
    int64_t count = std::min(kChunkTokens, end - begin);
    files.read(begin, count, chunk.data());
    files.release(begin, count);
    // A loop that the compiler turns into vector instructions.
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, chunk[static_cast<size_t>(i)]);
    visit(begin, count, chunk.data(), largest);
  }
}

}  // namespace

void check_all_ids(const TokenFiles& files, int64_t vocab_size) {
  for_each_chunk(files, files.size(), [&](int64_t begin, int64_t count, const int64_t* ids, int64_t largest) {
    if (largest >= vocab_size) check_ids(files, begin, count, ids, vocab_size);
  });
}

int64_t largest_id(const TokenFiles& files, int64_t tokens) {
  int64_t result = 0;
  for_each_chunk(
      files, std::min(tokens, files.size()),
      [&](int64_t, int64_t, const int64_t*, int64_t largest) { result = std::max(result, largest); });
  return result;
}

}  // namespace fsdp::data
