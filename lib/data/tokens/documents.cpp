#include "data/tokens/documents.h"

#include <algorithm>
#include <ranges>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

/// Returns the first document of a file that begins at `token` or later; documents() at the end of the file.
int64_t first_document_from(const TokenFile& file, int64_t token) {
  return *std::ranges::lower_bound(std::views::iota(int64_t{0}, file.documents() + 1), token, {},
                                   [&](int64_t document) { return file.document_begin(document); });
}

}  // namespace

bool records_documents(const TokenFile& file) { return file.has_documents() || file.turns() != nullptr; }

Documents::Documents(const TokenFiles& files, std::optional<int64_t> separator)
    : files_(files), separator_(separator) {
  for (size_t i = 0; i < files.paths().size() && !separator; ++i) {
    if (records_documents(files.file(i))) continue;
    fail(ErrorKind::kUsage, "data.documents: ", files.paths()[i],
         " has no index of its documents, and the token that separates them is unknown; set "
         "data.document_separator, or a data.tokenizer that has an end-of-text token");
  }
}

std::vector<int64_t> Documents::starts_in(int64_t begin, int64_t count, const int64_t* tokens) const {
  std::vector<int64_t> starts;
  auto add = [&](int64_t place) {
    if (place >= 1 && place < count && (starts.empty() || starts.back() < place)) starts.push_back(place);
  };
  for (size_t i = 0; i < files_.paths().size(); ++i) {
    const TokenFile& file = files_.file(i);
    const int64_t file_begin = files_.file_begin(i), file_end = file_begin + file.size();
    if (file_end <= begin || file_begin >= begin + count) continue;
    add(file_begin - begin);
    if (file.has_documents()) {
      const int64_t from = std::max<int64_t>(0, begin + 1 - file_begin);
      for (int64_t d = first_document_from(file, from); d < file.documents(); ++d) {
        const int64_t place = file_begin + file.document_begin(d) - begin;
        if (place >= count) break;
        add(place);
      }
    } else if (const TokenTurns* turns = file.turns()) {
      const int64_t end = std::min(file_end, begin + count);
      for (int64_t at = std::max(begin, file_begin); at < end; ++at) {
        if (turns->at(at - file_begin) == TokenPart::kDocumentStart) add(at - begin);
      }
    } else {
      const int64_t end = std::min(file_end, begin + count);
      for (int64_t at = std::max(begin, file_begin); at < end; ++at) {
        if (tokens[at - begin] == *separator_) add(at + 1 - begin);
      }
    }
  }
  return starts;
}

void Documents::for_each(const std::function<void(int64_t begin, int64_t end)>& visit) const {
  for (size_t i = 0; i < files_.paths().size(); ++i) {
    const TokenFile& file = files_.file(i);
    const int64_t file_begin = files_.file_begin(i);
    if (file.has_documents()) {
      for (int64_t d = 0; d < file.documents(); ++d) {
        visit(file_begin + file.document_begin(d), file_begin + file.document_begin(d + 1));
      }
      continue;
    }
    int64_t document = 0;
    if (const TokenTurns* turns = file.turns()) {
      for (int64_t at = 1; at < file.size(); ++at) {
        if (turns->at(at) != TokenPart::kDocumentStart) continue;
        visit(file_begin + document, file_begin + at);
        document = at;
      }
      visit(file_begin + document, file_begin + file.size());
      continue;
    }
    file.scan([&](int64_t at, const std::vector<int64_t>& ids) {
      for (size_t k = 0; k < ids.size(); ++k) {
        if (ids[k] != *separator_) continue;
        const int64_t end = at + static_cast<int64_t>(k) + 1;
        visit(file_begin + document, file_begin + end);
        document = end;
      }
    });
    if (document < file.size()) visit(file_begin + document, file_begin + file.size());
  }
}

DocumentSamples::DocumentSamples(const Documents& documents, int64_t sequence_length)
    : sequence_length_(sequence_length) {
  documents.for_each([this](int64_t begin, int64_t end) {
    if (end - begin < 2) return;
    begins_.push_back(begin);
    ends_.push_back(end);
    samples_before_.push_back(samples_before_.back() + (end - begin - 2) / sequence_length_ + 1);
  });
}

DocumentSamples::Range DocumentSamples::sample(int64_t index) const {
  FSDP_CHECK(index >= 0 && index < num_samples(), "sample ", index, " of ", num_samples());
  const auto after = std::upper_bound(samples_before_.begin(), samples_before_.end(), index);
  const auto document = static_cast<size_t>(after - samples_before_.begin() - 1);
  const int64_t begin = begins_[document] + (index - samples_before_[document]) * sequence_length_;
  return {.begin = begin, .tokens = std::min(sequence_length_ + 1, ends_[document] - begin)};
}

}  // namespace fsdp::data
