#include "data/texts/document_collector.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/util/error.h"
#include "data/tokenizers/utf8.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {
namespace {

/// Limit on text that is kept because it cannot be cut yet. Longer data is not text.
constexpr size_t kMaxCarriedBytes = size_t{64} << 20;

std::string without_escapes(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const char meant = next == 'n' ? '\n' : next == 't' ? '\t' : next == '\\' ? '\\' : '\0';
    out += meant != '\0' ? meant : text[i];
    if (meant != '\0') ++i;
  }
  return out;
}

/// Returns the ids between documents. `own` is the tokenizer's token, which `own_name` also names.
std::vector<int64_t> marker_ids(const char* option, const std::string& name, const Tokenizer& tokenizer,
                                const std::string& own_name, const std::vector<int64_t>& own) {
  if (name == "none") return {};
  if (name.empty() || (name == own_name && !own.empty())) return own;
  if (name.starts_with("text:")) {
    std::vector<int64_t> ids;
    tokenizer.encode(without_escapes(name.substr(std::strlen("text:"))), ids);
    return ids;
  }
  if (name.starts_with("id:")) {
    int64_t id = -1;
    const char* const begin = name.data() + std::strlen("id:");
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0 || id >= kMaxVocabSize) {
      fail(ErrorKind::kUsage, "`", option, "` must be from id:0 to id:", kMaxVocabSize - 1, ", but is ",
           name);
    }
    return {id};
  }
  const std::optional<int64_t> id = name == own_name ? std::nullopt : tokenizer.id_of(name);
  if (!id) {
    fail(ErrorKind::kUsage, "`", option, "` ", name, " is not a token of the tokenizer ", tokenizer.name(),
         "; give one that it has, id:N for another id, text:TEXT for a text that is tokenized, or none");
  }
  return {*id};
}

}  // namespace

std::vector<int64_t> separator_ids(const std::string& name, const Tokenizer& tokenizer) {
  const std::optional<int64_t> end = tokenizer.end_of_text();
  return marker_ids("document_separator", name, tokenizer, "eos",
                    end ? std::vector{*end} : std::vector<int64_t>{});
}

std::vector<int64_t> start_ids(const std::string& name, const Tokenizer& tokenizer) {
  return marker_ids("document_start", name, tokenizer, "bos", tokenizer.begin_of_text());
}

std::string RowForms::add(std::string_view form, const RowPlace& place) {
  if (form.empty()) return "";
  if (place.path != path_) {
    path_ = place.path;
    form_ = form;
    const auto known = std::ranges::find(files_, form, &Files::form);
    if (known == files_.end()) {
      files_.push_back({form, path_});
    } else {
      ++known->more;
    }
  }
  if (form == form_) return "";
  return concat(to_string(place), " is in the form of ", form, ", but the rows before it in the form of ",
                form_, "; write them to a file of their own, or skip such rows with `skip_bad`");
}

std::string RowForms::text() const {
  std::string text;
  for (const Files& each : files_) {
    text += concat(text.empty() ? "recognised " : ", ", each.form, " in ", each.first);
    if (each.more > 0) text += concat(" and ", each.more, each.more > 1 ? " more files" : " more file");
  }
  return text;
}

DocumentCollector::DocumentCollector(const Tokenizer& tokenizer, std::vector<int64_t> start,
                                     std::vector<int64_t> separator, TokenSink& sink, BadRows& bad_rows)
    : tokenizer_(tokenizer),
      start_(std::move(start)),
      separator_(std::move(separator)),
      sink_(sink),
      bad_rows_(bad_rows) {}

void DocumentCollector::add(const EncodedJob& encoded) {
  size_t ids_begin = 0;
  for (size_t i = 0; i < encoded.parts.size(); ++i) {
    const TextPart& part = encoded.job.parts[i];
    const EncodedJob::EncodedPart& result = encoded.parts[i];
    const std::string bad = result.bad.empty() ? forms_.add(result.form, part.place) : result.bad;
    if (!bad.empty()) {
      bad_rows_.add(bad);
      ids_begin = result.ids_end;
      continue;
    }
    if (!encoded.token_parts.empty()) {
      add_row(encoded, ids_begin, i);
      ids_begin = result.ids_end;
      continue;
    }
    if (!tokens_path_.empty() && (!result.is_tokens || tokens_path_ != part.place.path))
      end_tokens(part.place);
    if (result.is_tokens) {
      add_tokens(encoded, ids_begin, i);
      ids_begin = result.ids_end;
      continue;
    }
    std::string_view text = std::string_view(encoded.job.text).substr(part.begin, part.end - part.begin);
    if (part.begins_document) {
      sink_.choose(result.validation);
      if (!start_.empty()) sink_.append(start_);
      document_tokens_ = static_cast<int64_t>(start_.size());
    }
    if (skip_ > 0 || !carried_.empty()) {
      join(part, text);
    } else {
      const auto first = static_cast<int64_t>(ids_begin), last = static_cast<int64_t>(result.ids_end);
      ids_.assign(encoded.ids.begin() + first, encoded.ids.begin() + last);
      if (!part.ends_document) keep_rest(text, result.consumed, part.stop);
    }
    ids_begin = result.ids_end;
    if (part.ends_document) ids_.insert(ids_.end(), separator_.begin(), separator_.end());
    sink_.append(ids_);
    document_tokens_ += static_cast<int64_t>(ids_.size());
    if (!part.ends_document) continue;
    sink_.end_document();
    lengths_.add(document_tokens_, part.place);
  }
}

/// Writes the documents of part `index` of a job, a row that a RowEncoder has encoded.
void DocumentCollector::add_row(const EncodedJob& encoded, size_t ids_begin, size_t index) {
  const EncodedJob::EncodedPart& result = encoded.parts[index];
  const RowPlace& place = encoded.job.parts[index].place;
  sink_.choose(result.validation);
  const auto end = encoded.token_parts.begin() + static_cast<int64_t>(result.ids_end);
  int64_t documents = 0;
  for (auto next = encoded.token_parts.begin() + static_cast<int64_t>(ids_begin); next != end; ++documents) {
    const auto first = next;
    next = std::find(first + 1, end, TokenPart::kDocumentStart);
    const auto ids = encoded.ids.begin() + (first - encoded.token_parts.begin());
    sink_.append({ids, ids + (next - first)}, {first, next});
    sink_.end_document();
    lengths_.add(next - first, place);
  }
  if (documents_per_row_ == 0) documents_per_row_ = documents;
  if (documents == documents_per_row_) return;
  fail(ErrorKind::kData, to_string(place), " is ", documents == 1 ? "one answer" : "a pair of answers",
       ", but the rows before it are ", documents == 1 ? "pairs of answers" : "single answers",
       "; write them to an output of their own");
}

void DocumentCollector::join(const TextPart& part, std::string_view text) {
  ids_.clear();
  std::string whole = std::move(carried_);
  carried_.clear();
  whole += text.substr(skip_);
  // The next part begins at this position in `whole`.
  size_t gained = whole.size() - (text.size() - skip_);
  size_t stop = part.stop + gained > skip_ ? part.stop + gained - skip_ : 0;
  size_t behind = skip_ > part.stop + gained ? skip_ - part.stop - gained : 0;
  skip_ = 0;
  if (part.ends_document) return tokenizer_.encode(whole, ids_);
  if (behind > 0) {
    skip_ = behind;
    return;
  }
  keep_rest(whole, tokenizer_.encode_some(whole, stop, ids_), stop);
}

void DocumentCollector::keep_rest(std::string_view text, size_t consumed, size_t stop) {
  if (consumed > stop) {
    skip_ = consumed - stop;
  } else {
    carried_ = text.substr(consumed, stop - consumed);
  }
  if (carried_.size() > kMaxCarriedBytes) {
    fail(ErrorKind::kData, "a text has ", carried_.size(),
         " bytes without a place where the tokenizer may cut it, beginning with \"",
         for_message(std::string_view(carried_).substr(0, 40)),
         "\"; leave the text out, break it into lines, or, if the tokenizer takes each text "
         "as a whole (as those of SentencePiece, Llama 2, Mistral and T5 do), split it into "
         "several documents: files, or lines of a .jsonl");
  }
}

/// Passes on a row of tokens.
void DocumentCollector::add_tokens(const EncodedJob& encoded, size_t ids_begin, size_t index) {
  const EncodedJob::EncodedPart& result = encoded.parts[index];
  const RowPlace& place = encoded.job.parts[index].place;
  const auto end = encoded.ids.begin() + static_cast<int64_t>(result.ids_end);
  for (auto next = encoded.ids.begin() + static_cast<int64_t>(ids_begin); next != end;) {
    if (tokens_path_.empty()) {
      sink_.choose(result.validation);
      document_tokens_ = 0;
      tokens_path_ = place.path;
    }
    const auto first = next;
    next = separator_.size() == 1 ? std::find(first, end, separator_.front()) : end;
    const bool ends = separator_.size() != 1 || next != end;
    if (next != end) ++next;
    sink_.append({first, next});
    document_tokens_ += next - first;
    if (ends) end_tokens(place);
  }
}

void DocumentCollector::end_tokens(const RowPlace& place) {
  sink_.end_document();
  lengths_.add(document_tokens_, place);
  tokens_path_ = {};
}

}  // namespace fsdp::data
