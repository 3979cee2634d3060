#include "data/tokens/token_files.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <type_traits>

#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/regular_file.h"
#include "data/tokens/foreign_content.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and mapped as they are");

/// Returns the .bin of a pair that is named by its .idx or without extension, and every other path unchanged.
std::string tokens_path(const std::string& path) {
  std::error_code error;
  fs::path given = path;
  if (objects::is_remote(path)) {
    return util::extension_of(given) == ".idx" ? given.replace_extension(".bin").string() : path;
  }
  if (util::extension_of(given) == ".idx") {
    fs::path tokens = fs::path(given).replace_extension(".bin");
    return fs::exists(tokens, error) ? tokens.string() : path;
  }
  if (fs::exists(given, error)) return path;
  bool pair = fs::exists(path + ".bin", error) && fs::exists(path + ".idx", error);
  return pair ? path + ".bin" : path;
}

std::string first_bytes(const fs::path& path) {
  return util::read_beginning(path, static_cast<size_t>(kIndexMagicBytes));
}

/// Larger than any existing vocabulary by a factor of four.
constexpr int64_t kLargestPlausibleId = int64_t{1} << 20;

template <typename Source>
void scan_parts(const Source& source, int64_t begin, int64_t end, const VisitTokens& visit) {
  constexpr int64_t kPartTokens = 1 << 18;
  std::vector<int64_t> ids;
  for (; begin < end; begin += kPartTokens) {
    const int64_t count = std::min(kPartTokens, end - begin);
    ids.resize(static_cast<size_t>(count));
    source.will_read(begin + count, std::min(kPartTokens, end - begin - count));
    source.read(begin, count, ids.data());
    source.release(begin, count);
    visit(begin, ids);
  }
}

/// Returns the largest element by a loop that the compiler vectorizes, unlike std::max_element().
int64_t largest_of(const std::vector<int64_t>& ids) {
  int64_t largest = 0;
  for (int64_t id : ids) largest = std::max(largest, id);
  return largest;
}

int32_t header_number(const TokenStorage& file, int64_t i) {
  int32_t number;
  std::vector<char> buffer;
  std::memcpy(&number, file.view(4 * i, sizeof(number), buffer), sizeof(number));
  return number;
}

}  // namespace

std::string remedy_for_id(int64_t id) {
  if (id <= kLargestPlausibleId) {
    return concat(
        "tokenize the text with the tokenizer of the model, or set model.vocab_size to the "
        "number of tokens of the tokenizer that made the file (at least ",
        id + 1, ")");
  }
  return "no vocabulary is that large, so the file does not contain tokens of the width that "
         "its name implies; create it again with fsdp-data tokenize, or with fsdp-data "
         "convert --input-format";
}

TokenFile::TokenFile(const std::string& path, std::optional<TokenFormat> expected)
    : path_(tokens_path(path)) {
  file_ = std::make_unique<TokenStorage>(path_);
  if (file_->size_bytes() == 0) file_->refuse("is empty", "create it again with fsdp-data tokenize");
  std::optional<TokenFormat> found;
  if (expected != TokenFormat::kU16 && expected != TokenFormat::kU32) found = format_of_content();
  bool four_bytes = expected ? expected == TokenFormat::kU32 : util::extension_of(path_) == kUint32Extension;
  format_ = found.value_or(four_bytes ? TokenFormat::kU32 : TokenFormat::kU16);
  type_ = has_two_bytes(format_) ? TokenType::kUint16 : TokenType::kUint32;
  if (data::has_documents(format_)) {
    open_pair();
  } else if (is_llmc(format_)) {
    open_llmc();
  } else {
    require_tokens(/*any_content=*/expected.has_value());
    open_flat();
  }
  if (expected && *expected != format_) {
    file_->refuse(concat("must have the format ", to_string(*expected), ", but has ", to_string(format_)),
                  "give the format that it has, or none");
  }
  if (size_ == 0) file_->refuse("contains no tokens", "create it again with fsdp-data tokenize");
  open_turns();
}

std::optional<TokenFormat> TokenFile::format_of_content() const {
  if (file_->size_bytes() >= 4) {
    int32_t magic = header_number(*file_, 0);
    if (magic == LlmcHeader::kMagicU16) return TokenFormat::kLlmcU16;
    if (magic == LlmcHeader::kMagicU32) return TokenFormat::kLlmcU32;
    if (magic == LlmcHeader::kMagicEvaluation) {
      file_->refuse(
          "contains llm.c's questions with answers (magic 20240522), which are not text to "
          "train on",
          "use a file of tokens");
    }
  }
  if (util::extension_of(path_) != ".bin") return std::nullopt;
  const fs::path index = index_path(path_);
  const std::optional<std::string> readable = companion_of_tokens(index.string());
  if (!readable) return std::nullopt;
  const std::string magic = first_bytes(*readable);
  if (magic == std::string_view(kIndexMagic, static_cast<size_t>(kIndexMagicBytes))) {
    return TokenFormat::kMegatron;  // or fairseq's, which TokenIndex determines
  }
  if (magic.starts_with("TNTIDX")) {
    file_->refuse("has fairseq's older format (TNTIDX)",
                  "create it again with fairseq-preprocess --dataset-impl mmap");
  }
  file_->refuse(concat("has ", index.string(), " beside it, which is not an index of tokens (MMIDIDX)"),
                "copy the index again, or move it away if the tokens need none");
}

/// Refuses content that does not look like tokens, since every file that is not recognised as something else
/// counts as 16-bit tokens. Tokens that are wider than their file's format are refused in any case.
void TokenFile::require_tokens(bool any_content) const {
  constexpr int64_t kSample = 8192;
  const int64_t bytes = file_->size_bytes(), head_bytes = std::min<int64_t>(bytes, 512);
  const int64_t middle = std::max<int64_t>(bytes / 2 - kSample / 2, 0) / 8 * 8;
  const int64_t sample_bytes = std::min(kSample, bytes - middle);
  std::vector<char> buffer, head_buffer;
  const std::string_view sample(file_->view(middle, sample_bytes, buffer), static_cast<size_t>(sample_bytes));
  const std::string_view head(file_->view(0, head_bytes, head_buffer), static_cast<size_t>(head_bytes));
  const auto foreign = format_ == TokenFormat::kU16 && !any_content ? foreign_to_tokens(head, sample, path_)
                                                                    : wide_tokens(sample, path_);
  if (foreign) file_->refuse(foreign->found, foreign->remedy);
}

void TokenFile::open_flat() {
  int64_t bytes = file_->size_bytes(), width = bytes_of(type_);
  if (bytes % width != 0) {
    std::string what = width == 2 ? concat("has an odd number of bytes (", bytes, ")")
                                  : concat("has ", bytes, " bytes, not a multiple of four");
    file_->refuse(concat(what, ", but must have ", width == 2 ? "two" : "four", " bytes per token"),
                  "it was cut off or is not a token file, so create it again with fsdp-data tokenize");
  }
  size_ = bytes / width;
}

void TokenFile::open_llmc() {
  const int32_t version = has_two_bytes(format_) ? LlmcHeader::kVersionU16 : LlmcHeader::kVersionU32;
  const char* remedy = "it was cut off or is of another version, so create or copy it again";
  header_bytes_ = LlmcHeader::kBytes;
  int64_t bytes = file_->size_bytes();
  if (bytes < header_bytes_) {
    file_->refuse(
        concat("has llm.c's magic number, but only ", bytes, " bytes instead of a header of ", header_bytes_),
        remedy);
  }
  if (header_number(*file_, 1) != version) {
    file_->refuse(
        concat("must have version ", version, " of llm.c's header, but has ", header_number(*file_, 1)),
        remedy);
  }
  int64_t tokens = header_number(*file_, 2);
  if (tokens < 0 || bytes - header_bytes_ != tokens * bytes_of(type_)) {
    file_->refuse(concat("declares ", tokens, " tokens of ", bytes_of(type_),
                         " bytes in llm.c's header, but ", bytes - header_bytes_, " bytes follow the header"),
                  remedy);
  }
  size_ = tokens;
}

void TokenFile::open_pair() {
  const std::string index = index_path(path_).string();
  index_ =
      std::make_unique<TokenIndex>(companion_of_tokens(index).value_or(index), path_, file_->size_bytes());
  format_ = index_->format();
  type_ = index_->type();
  size_ = file_->size_bytes() / bytes_of(type_);
}

void TokenFile::open_turns() {
  const std::optional<std::string> path = companion_of_tokens(turns_path(path_).string());
  if (!path) return;
  turns_ = std::make_unique<TokenTurns>(*path, path_, size_);
  TokenHash hash;
  scan([&hash](int64_t, const std::vector<int64_t>& ids) { hash.add(ids.data(), ids.size()); });
  turns_->check_tokens(hash);
}

template <typename Stored>
void TokenFile::copy(int64_t begin, int64_t count, int64_t* out) const {
  constexpr auto kWidth = static_cast<int64_t>(sizeof(Stored));
  std::vector<char> buffer;
  const auto* from =
      reinterpret_cast<const Stored*>(file_->view(header_bytes_ + begin * kWidth, count * kWidth, buffer));
  bool outside = false;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>(from[i]);
    if constexpr (std::is_signed_v<Stored> || sizeof(Stored) == 8) {
      outside |= out[i] < 0 || out[i] > int64_t{UINT32_MAX};
    }
  }
  if (!outside) return;
  int64_t i = 0;
  while (out[i] >= 0 && out[i] <= int64_t{UINT32_MAX}) ++i;
  file_->refuse(concat("has the id ", out[i], " at token ", begin + i, ", outside of 0 to 2^32 - 1"),
                "create it again from the text");
}

void TokenFile::read(int64_t begin, int64_t count, int64_t* out) const {
  FSDP_CHECK(begin >= 0 && count >= 0 && begin <= size_ - count, "tokens ", begin, " + ", count, " of ",
             size_);
  int64_t bytes = file_->current_size_bytes();
  if (bytes < header_bytes_ + (begin + count) * bytes_of(type_)) {
    file_->refuse(concat("had ", size_, " tokens when it was opened and now has ",
                         std::max<int64_t>(bytes - header_bytes_, 0) / bytes_of(type_)),
                  "do not change it while it is in use (replace it by a rename), and start again");
  }
  using Copy = void (TokenFile::*)(int64_t, int64_t, int64_t*) const;
  // Functions in the order of TokenType.
  constexpr Copy kCopies[] = {&TokenFile::copy<uint8_t>,  &TokenFile::copy<int8_t>,
                              &TokenFile::copy<int16_t>,  &TokenFile::copy<int32_t>,
                              &TokenFile::copy<int64_t>,  &TokenFile::copy<uint16_t>,
                              &TokenFile::copy<uint32_t>, &TokenFile::copy<uint64_t>};
  (this->*kCopies[static_cast<size_t>(type_)])(begin, count, out);
}

void TokenFile::release(int64_t begin, int64_t count) const {
  file_->release(header_bytes_ + begin * bytes_of(type_), count * bytes_of(type_));
}

void TokenFile::will_read(int64_t begin, int64_t count) const {
  file_->will_read(header_bytes_ + begin * bytes_of(type_), count * bytes_of(type_));
}

void TokenFile::scan(const VisitTokens& visit) const { scan_parts(*this, 0, size_, visit); }

TokenFiles::TokenFiles(const std::vector<std::string>& paths, std::optional<TokenFormat> expected)
    : paths_(paths) {
  FSDP_CHECK(!paths_.empty(), "no token files");
  int64_t end = 0;
  for (const std::string& path : paths_) {
    files_.push_back(std::make_unique<TokenFile>(path, expected));
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

bool TokenFiles::has_remote() const { return std::ranges::any_of(paths_, objects::is_remote); }

size_t TokenFiles::file_of(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
}

template <typename Visit>
void TokenFiles::for_each_part(int64_t begin, int64_t count, const Visit& visit) const {
  FSDP_CHECK(begin >= 0 && count >= 0 && begin <= size() - count, "tokens ", begin, " + ", count, " of ",
             size());
  for (size_t i = file_of(begin); count > 0; ++i) {
    int64_t here = std::min(count, ends_[i] - begin);
    visit(*files_[i], begin - file_begin(i), here);
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

void TokenFiles::read_parts(int64_t begin, int64_t count, TokenPart* out) const {
  for_each_part(begin, count, [&out](const TokenFile& file, int64_t first, int64_t here) {
    file.turns()->read(first, here, out);
    out += here;
  });
}

void TokenFiles::release(int64_t begin, int64_t count) const {
  for_each_part(begin, count,
                [](const TokenFile& file, int64_t first, int64_t here) { file.release(first, here); });
}

void TokenFiles::will_read(int64_t begin, int64_t count) const {
  for_each_part(begin, count,
                [](const TokenFile& file, int64_t first, int64_t here) { file.will_read(first, here); });
}

TokenFiles::Position TokenFiles::locate(int64_t position) const {
  FSDP_CHECK(position >= 0 && position < size(), "token ", position, " of ", size());
  size_t i = file_of(position);
  return {paths_[i], position - file_begin(i)};
}

void TokenFiles::scan(int64_t begin, int64_t end, const VisitTokens& visit) const {
  scan_parts(*this, begin, end, visit);
}

void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids,
               int64_t vocab_size) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < vocab_size) continue;
    TokenFiles::Position where = files.locate(begin + i);
    fail(ErrorKind::kData, "token ", where.token, " of ", where.path, " has the id ", ids[i],
         ", but ids must be less than model.vocab_size = ", vocab_size, "; ", remedy_for_id(ids[i]));
  }
}

void check_all_ids(const TokenFiles& files, int64_t vocab_size) {
  files.scan(0, files.size(), [&](int64_t begin, const std::vector<int64_t>& ids) {
    if (largest_of(ids) < vocab_size) return;
    check_ids(files, begin, static_cast<int64_t>(ids.size()), ids.data(), vocab_size);
  });
}

int64_t largest_id(const TokenFiles& files, int64_t tokens) {
  int64_t largest = 0;
  files.scan(0, std::min(tokens, files.size()),
             [&](int64_t, const std::vector<int64_t>& ids) { largest = std::max(largest, largest_of(ids)); });
  return largest;
}

}  // namespace fsdp::data
