#include "data/tokens/convert.h"

#include <algorithm>
#include <filesystem>

#include "base/util/error.h"
#include "data/tokens/token_files.h"
#include "data/tokens/token_writer.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

void check(const ConvertOptions& options) {
  if (options.inputs.empty()) {
    fail(ErrorKind::kUsage, "no token file was given; name at least one to convert");
  }
  check_output_name(options.output, options.format, /*has_turns=*/true);
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

void copy_separated(const TokenFile& file, int64_t separator, TokenWriter& writer) {
  bool open = false;
  file.scan([&](int64_t, const std::vector<int64_t>& ids) {
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
  file.scan([&](int64_t begin, const std::vector<int64_t>& ids) {
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

/// Copies the companion too, which records where conversations begin.
void copy_conversations(const TokenFile& file, TokenWriter& writer) {
  std::vector<TokenPart> parts;
  file.scan([&](int64_t begin, const std::vector<int64_t>& ids) {
    parts.resize(ids.size());
    file.turns()->read(begin, static_cast<int64_t>(ids.size()), parts.data());
    for (size_t from = 0, to = 0; from < ids.size(); from = to) {
      const auto next =
          std::find(parts.begin() + static_cast<int64_t>(from) + 1, parts.end(), TokenPart::kDocumentStart);
      to = static_cast<size_t>(next - parts.begin());
      if (parts[from] == TokenPart::kDocumentStart && begin + static_cast<int64_t>(from) > 0)
        writer.end_document();
      const auto first = static_cast<int64_t>(from), last = static_cast<int64_t>(to);
      writer.append({ids.begin() + first, ids.begin() + last}, {parts.begin() + first, parts.begin() + last});
    }
  });
  writer.end_document();
}

/// Whether the files are of conversations: all or none of them.
bool have_turns(const TokenFiles& files) {
  const bool first = files.file(0).turns() != nullptr;
  for (size_t i = 1; i < files.paths().size(); ++i) {
    if ((files.file(i).turns() != nullptr) == first) continue;
    fail(ErrorKind::kUsage, "of ", files.paths()[0], " and ", files.paths()[i], ", only ",
         files.paths()[first ? 0 : i], " is of conversations (it has a companion ",
         turns_path(files.paths()[first ? 0 : i]).filename().string(), "); convert them one by one");
  }
  return first;
}

}  // namespace

ConvertReport convert(const ConvertOptions& options) {
  check(options);
  TokenFiles files(options.inputs, options.input_format);
  // The largest id decides how many bytes an indexed format takes per token.
  const int64_t vocab_size = has_documents(options.format) ? largest_id(files, files.size()) + 1 : 0;
  const bool has_turns = have_turns(files);
  TokenWriter writer(options.output,
                     {.format = options.format, .vocab_size = vocab_size, .has_turns = has_turns});
  for (size_t i = 0; i < files.paths().size(); ++i) {
    const TokenFile& file = files.file(i);
    if (has_turns) {
      copy_conversations(file, writer);
    } else if (file.has_documents()) {
      copy_documents(file, writer);
    } else if (options.document_separator) {
      copy_separated(file, *options.document_separator, writer);
    } else {
      file.scan([&writer](int64_t, const std::vector<int64_t>& ids) { writer.append(ids); });
      writer.end_document();
    }
  }
  writer.finish();
  writer.commit();
  return {.tokens = writer.size(), .documents = writer.documents()};
}

}  // namespace fsdp::data
