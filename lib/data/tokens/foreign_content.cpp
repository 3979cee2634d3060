#include "data/tokens/foreign_content.h"

#include <algorithm>
#include <cstdint>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

using namespace std::string_view_literals;

enum class ForeignRemedy { kDecompress, kConvert, kRename };

struct Signature {
  std::string_view bytes;
  const char* found;
  ForeignRemedy way;
  /// Tool that writes the content to standard output or converts the file, or the file's extension.
  const char* tool;
};

constexpr Signature kSignatures[] = {
    {"\x1f\x8b\x08"sv, "is compressed by gzip", ForeignRemedy::kDecompress, "zcat"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd", ForeignRemedy::kDecompress, "zstdcat"},
    {"\xfd"
     "7zXZ\0"sv,
     "is compressed by xz", ForeignRemedy::kDecompress, "xzcat"},
    {"BZh"sv, "is compressed by bzip2", ForeignRemedy::kDecompress, "bzcat"},
    {"\x04\x22\x4d\x18"sv, "is compressed by lz4", ForeignRemedy::kDecompress, "lz4cat"},
    {"PK\x03\x04"sv, "is a zip archive", ForeignRemedy::kDecompress, "unzip -p"},
    {"PAR1"sv, "is a parquet table", ForeignRemedy::kRename, ".parquet"},
    {"ARROW1"sv, "is an arrow table", ForeignRemedy::kConvert, "to_json() of Hugging Face's datasets"},
    {"FEA1"sv, "is a feather table", ForeignRemedy::kConvert,
     "to_json(..., orient=\"records\", lines=True) of pandas"},
    {"\xff\xff\xff\xff"sv, "is a stream of arrow", ForeignRemedy::kConvert,
     "to_json() of Hugging Face's datasets"},
    {"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file", ForeignRemedy::kConvert, "h5dump or h5py"},
    {"\x93NUMPY"sv, "is an array of numpy", ForeignRemedy::kConvert, "numpy"},
    {"\x80\x02"sv, "is pickled by Python", ForeignRemedy::kConvert, "Python"},
    {"\x80\x04\x95"sv, "is pickled by Python", ForeignRemedy::kConvert, "Python"},
    {"%PDF-"sv, "is a PDF", ForeignRemedy::kConvert, "pdftotext"},
    {"\x89PNG"sv, "is a picture", ForeignRemedy::kConvert, "a program that reads its text"},
    {"\x7f"
     "ELF"sv,
     "is a program", ForeignRemedy::kConvert, "or use a text instead"},
};

std::optional<ForeignContent> known(std::string_view head, const std::string& path) {
  for (const Signature& signature : kSignatures) {
    if (!head.starts_with(signature.bytes)) continue;
    const std::string remedy =
        signature.way == ForeignRemedy::kRename ? concat("name it ", signature.tool)
        : signature.way == ForeignRemedy::kDecompress
            ? concat("give its content: ", signature.tool, " ", path, " | fsdp-data tokenize - ...")
            : concat("convert it to plain text or .jsonl, one object per line, first (", signature.tool, ")");
    return ForeignContent{signature.found, remedy};
  }
  return std::nullopt;
}

/// Whether the sample is text, apart from characters that are cut off at its ends.
bool is_text(std::string_view sample) {
  while (!sample.empty() && is_continuation(sample.front())) sample.remove_prefix(1);
  sample.remove_suffix(incomplete_utf8_tail(sample));
  const auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f') ||
           c == '\x7f';
  };
  return std::none_of(sample.begin(), sample.end(), is_control) && valid_utf8_prefix(sample) == sample.size();
}

constexpr size_t kLeast = 64;  // fewer bytes may look like text or wider tokens by chance

uint32_t number_at(std::string_view sample, size_t at, size_t bytes) {
  uint32_t number = 0;
  for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<unsigned char>(sample[at + i]);
  return number;
}

/// Whether a sample read as numbers of `bytes` bytes holds numbers of twice that width. Every second number
/// is then an upper half, which is 0 or, if the lower halves are large, small.
bool has_upper_halves(std::string_view sample, size_t bytes, uint32_t most) {
  constexpr uint32_t kLargeNumber = 1024;  // numbers of a tiny vocabulary are all small
  uint32_t largest = 0, largest_upper = 0;
  size_t others = 0;
  for (size_t i = 0; i + 2 * bytes <= sample.size(); i += 2 * bytes) {
    const uint32_t upper = number_at(sample, i + bytes, bytes), lower = number_at(sample, i, bytes);
    if (upper > most) return false;
    largest = std::max(largest, lower);
    largest_upper = std::max(largest_upper, upper);
    others += lower != 0 ? 1 : 0;
  }
  // Padding is 0 throughout, except for a few tokens.
  if (others * 8 * bytes < sample.size()) return false;
  return largest_upper == 0 || largest >= kLargeNumber;
}

/// Returns the encoding of a text that begins so, if it is not UTF-8; "" otherwise.
std::string other_encoding(std::string_view head) {
  if (head.starts_with("\xff\xfe\0\0"sv) || head.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (head.starts_with("\xff\xfe"sv) || head.starts_with("\xfe\xff"sv)) return "UTF-16";
  // In UTF-16 prose without a byte order mark, nearly every second byte is 0.
  size_t zeros[2] = {};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == 0 ? 1 : 0;
  const size_t half = head.size() / 2;
  if (half < 8) return "";
  if (zeros[0] == 0 && zeros[1] > half * 3 / 4) return "UTF-16LE";
  if (zeros[1] == 0 && zeros[0] > half * 3 / 4) return "UTF-16BE";
  return "";
}

}  // namespace

std::optional<ForeignContent> foreign_to_text(std::string_view head, const std::string& path, TextKind kind) {
  if (const std::string encoding = other_encoding(head); !encoding.empty()) {
    return ForeignContent{concat("is ", encoding, ", as its bytes from offset 0 on show, and must be UTF-8"),
                          concat("convert it: iconv -f ", encoding, " -t UTF-8 ", path, " > NEW")};
  }
  if (auto foreign = known(head, path)) return foreign;
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (util::extension_of(path) != ".json" || first == std::string_view::npos) return std::nullopt;
  const bool is_array = head[first] == '[';
  if ((!is_array && head[first] != '{') || kind == TextKind::kRows) return std::nullopt;
  return ForeignContent{
      concat("is a JSON ", is_array ? "array" : "object", ", and its name does not end with .jsonl"),
      concat("name it .jsonl or set `json_lines` if ",
             is_array ? "its elements are objects" : "it has one object per line"),
      true};
}

std::optional<ForeignContent> wide_tokens(std::string_view sample, const std::string& path) {
  if (sample.size() < kLeast || !has_upper_halves(sample, 4, 0)) return std::nullopt;
  return ForeignContent{
      "has 0 as every second 32-bit number, like a file with eight bytes per token",
      concat(
          "write its tokens with four bytes each, for example by python3 -c \"import numpy; numpy.fromfile('",
          path, "', 'int64').astype('uint32').tofile('NAME.u32')\"")};
}

std::optional<ForeignContent> foreign_to_tokens(std::string_view head, std::string_view sample,
                                                const std::string& path) {
  constexpr uint32_t kMostUpper = 31;  // ids of up to 2 million
  if (auto foreign = known(head, path)) {
    foreign->remedy += ", and tokenize that";
    return foreign;
  }
  if (sample.size() < kLeast) return std::nullopt;
  if (is_text(sample)) {
    return ForeignContent{"is text", concat("tokenize it: fsdp-data tokenize ", path, " --output NAME.bin")};
  }
  if (auto wide = wide_tokens(sample, path)) return wide;
  if (has_upper_halves(sample, 2, kMostUpper)) {
    return ForeignContent{
        "has the upper half of a number as every second number, like a file with four bytes per token",
        "rename it to NAME.u32"};
  }
  return std::nullopt;
}

}  // namespace fsdp::data
