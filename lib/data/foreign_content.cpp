#include "data/foreign_content.h"

#include <algorithm>
#include <filesystem>

#include "data/utf8.h"
#include "util/error.h"

namespace fsdp::data {
namespace {

using util::concat;
using namespace std::string_view_literals;

enum class Way { kDecompress, kConvert, kRename };

struct Signature {
  std::string_view bytes;
  const char* found;
  Way way;
  const char* tool;  ///< writes the content to standard output, converts the file, or is its extension
};

constexpr Signature kSignatures[] = {
    {"\x1f\x8b\x08"sv, "is compressed by gzip", Way::kDecompress, "zcat"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd", Way::kDecompress, "zstdcat"},
    {"\xfd"
     "7zXZ\0"sv,
     "is compressed by xz", Way::kDecompress, "xzcat"},
    {"BZh"sv, "is compressed by bzip2", Way::kDecompress, "bzcat"},
    {"\x04\x22\x4d\x18"sv, "is compressed by lz4", Way::kDecompress, "lz4cat"},
    {"PK\x03\x04"sv, "is a zip archive", Way::kDecompress, "unzip -p"},
    {"PAR1"sv, "is a parquet table", Way::kRename, ".parquet"},
    {"ARROW1"sv, "is an arrow table", Way::kConvert, "to_json() of Hugging Face's datasets"},
    {"FEA1"sv, "is a feather table", Way::kConvert, "to_json(..., orient=\"records\", lines=True) of pandas"},
    {"\xff\xff\xff\xff"sv, "is a stream of arrow", Way::kConvert, "to_json() of Hugging Face's datasets"},
    {"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file", Way::kConvert, "h5dump or h5py"},
    {"\x93NUMPY"sv, "is an array of numpy", Way::kConvert, "numpy"},
    {"\x80\x02"sv, "is pickled by Python", Way::kConvert, "Python"},
    {"\x80\x04\x95"sv, "is pickled by Python", Way::kConvert, "Python"},
    {"%PDF-"sv, "is a PDF", Way::kConvert, "pdftotext"},
    {"\x89PNG"sv, "is a picture", Way::kConvert, "a program that reads its text"},
    {"\x7f"
     "ELF"sv,
     "is a program", Way::kConvert, "or use a text instead"},
};

std::optional<ForeignContent> known(std::string_view head, const std::string& path) {
  for (const Signature& signature : kSignatures) {
    if (!head.starts_with(signature.bytes)) continue;
    const std::string remedy =
        signature.way == Way::kRename ? concat("name it ", signature.tool)
        : signature.way == Way::kDecompress
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

bool every_second_is_zero(std::string_view sample) {
  bool others_are_zero = true;
  for (size_t i = 0; i + 4 <= sample.size(); i += 4) {
    if (sample[i + 2] != 0 || sample[i + 3] != 0) return false;
    others_are_zero = others_are_zero && sample[i] == 0 && sample[i + 1] == 0;
  }
  return !others_are_zero;
}

}  // namespace

std::optional<ForeignContent> foreign_to_text(std::string_view head, const std::string& path) {
  if (auto foreign = known(head, path)) return foreign;
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (std::filesystem::path(path).extension() != ".json" || first == std::string_view::npos)
    return std::nullopt;
  if (head[first] != '[' && head[first] != '{') return std::nullopt;
  return ForeignContent{head[first] == '[' ? "is a JSON array, not one JSON object per line"
                                           : "is a JSON object, and its name does not end with .jsonl",
                        head[first] == '['
                            ? concat("write its objects as lines: jq -c '.[]' ", path, " > texts.jsonl")
                            : "name it .jsonl if it has one object per line"};
}

std::optional<ForeignContent> foreign_to_tokens(std::string_view head, std::string_view sample,
                                                const std::string& path) {
  constexpr size_t kLeast = 64;  // fewer bytes may look like text or 32-bit tokens by chance
  if (auto foreign = known(head, path)) {
    foreign->remedy += ", and tokenize that";
    return foreign;
  }
  if (sample.size() < kLeast) return std::nullopt;
  if (is_text(sample)) {
    return ForeignContent{"is text", concat("tokenize it: fsdp-data tokenize ", path, " --output NAME.bin")};
  }
  if (every_second_is_zero(sample)) {
    return ForeignContent{"has 0 as every second number, like a file with four bytes per token",
                          "rename it to NAME.u32"};
  }
  return std::nullopt;
}

}  // namespace fsdp::data
