#include "data/convert.h"

#include <algorithm>
#include <filesystem>

#include "data/token_files.h"
#include "data/token_writer.h"
#include "util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using util::ErrorKind;
using util::fail;

constexpr int64_t kChunkTokens = 1 << 18;

void check(const ConvertOptions& options) {
  if (options.inputs.empty()) {
    fail(ErrorKind::kUsage, "no token file was given; name at least one to convert");
  }
  check_output_name(options.output, options.format);
  std::error_code error;
  for (const std::string& input : options.inputs) {
    for (const fs::path& output : {fs::path(options.output), index_path(options.output)}) {
      if (fs::equivalent(input, output, error)) {
        fail(ErrorKind::kUsage, "the output ", options.output, " would replace the input ", input,
             "; choose another name");
      }
    }
  }
}

/// Visits all tokens of a file in pieces: visit(first token, ids).
template <typename Visit>
void for_each_chunk(const TokenFile& file, const Visit& visit) {
  std::vector<int64_t> ids;
  for (int64_t begin = 0; begin < file.size(); begin += kChunkTokens) {
    ids.resize(static_cast<size_t>(std::min(kChunkTokens, file.size() - begin)));
    file.read(begin, static_cast<int64_t>(ids.size()), ids.data());
    file.release(begin, static_cast<int64_t>(ids.size()));
    visit(begin, ids);
  }
}

/// One more than the largest id, which decides how many bytes an indexed format takes a token.
int64_t needed_vocab_size(const TokenFiles& files, TokenFormat format) {
  if (!has_documents(format)) return 0;
  int64_t largest = 0;
  for (size_t i = 0; i < files.paths().size(); ++i) {
    for_each_chunk(files.file(i), [&](int64_t, const std::vector<int64_t>& ids) {
      largest = std::max(largest, *std::max_element(ids.begin(), ids.end()));
    });
  }
  return largest + 1;
}

void copy_separated(const TokenFile& file, int64_t separator, TokenWriter& writer) {
  bool open = false;
  for_each_chunk(file, [&](int64_t, const std::vector<int64_t>& ids) {
    for (auto next = ids.begin(); next != ids.end();) {
      auto found = std::find(next, ids.end(), separator);
      open = found == ids.end();
      if (!open) ++found;
      writer.append({next, found});
      if (!open) writer.end_document();
      next = found;
    }
  });
  if (open) writer.end_document();
}

void copy_documents(const TokenFile& file, TokenWriter& writer) {
  int64_t document = 0;
  for_each_chunk(file, [&](int64_t begin, const std::vector<int64_t>& ids) {
    auto next = ids.begin();
    while (document < file.documents()) {
      int64_t end = file.document_begin(document + 1) - begin;
      if (end > static_cast<int64_t>(ids.size())) break;
      writer.append({next, ids.begin() + end});
      writer.end_document();
      next = ids.begin() + end;
      ++document;
    }
    writer.append({next, ids.end()});
  });
}

}  // namespace

ConvertReport convert(const ConvertOptions& options) {
  check(options);
  TokenFiles files(options.inputs, options.input_format);
  TokenWriter writer(options.output,
                     {.format = options.format, .vocab_size = needed_vocab_size(files, options.format)});
  for (size_t i = 0; i < files.paths().size(); ++i) {
    const TokenFile& file = files.file(i);
    if (file.has_documents()) {
      copy_documents(file, writer);
    } else if (options.document_separator) {
      copy_separated(file, *options.document_separator, writer);
    } else {
      for_each_chunk(file, [&writer](int64_t, const std::vector<int64_t>& ids) { writer.append(ids); });
      writer.end_document();
    }
  }
  writer.finish();
  writer.commit();
  return {.tokens = writer.size(), .documents = writer.documents()};
}

}  // namespace fsdp::data
