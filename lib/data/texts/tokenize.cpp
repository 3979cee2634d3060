#include "data/texts/tokenize.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "data/texts/text_input.h"
#include "data/texts/text_jobs.h"
#include "data/tokenizers/utf8.h"
#include "data/tokens/token_writer.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

/// Limit on text that is kept because it cannot be cut yet. Longer data is not text.
constexpr size_t kMaxCarriedBytes = size_t{64} << 20;

/// Returns the file that a path refers to, even if it does not exist yet.
fs::path resolved(const std::string& path) {
  std::error_code error;
  fs::path canonical = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? fs::path(path) : canonical;
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return resolved(a) == resolved(b) || fs::equivalent(a, b, error);
}

void check_output(const std::string& output, const char* option, const std::vector<std::string>& files) {
  std::error_code error;
  if (output.empty() || !fs::path(output).has_filename() || fs::is_directory(output, error)) {
    fail(ErrorKind::kUsage, "`", option, "` must be the name of a file, but \"", output, "\" is a folder; ",
         "add a file name, such as train.bin");
  }
  for (const std::string& text : files) {
    if (text != kStandardInput && is_same_file(text, output)) {
      fail(ErrorKind::kUsage, "`", option, "` ", output,
           " would overwrite one of the texts; choose another name");
    }
  }
}

void check_chat(const TokenizeOptions& options) {
  if (!options.make_row_encoder) return;
  if (!options.document_separator.empty()) {
    fail(ErrorKind::kUsage,
         "the output's companion records where conversations end, without a `document_separator`; leave it "
         "out");
  }
  if (!options.document_start.empty() && options.document_start != "none") {
    fail(ErrorKind::kUsage,
         "`document_start` must be none for conversations, which the chat template begins, but is ",
         options.document_start, "; leave it out");
  }
  if (options.split_special_tokens) {
    fail(ErrorKind::kUsage,
         "`split_special_tokens` would split the special tokens of the chat template too; leave it out");
  }
}

void check(const TokenizeOptions& options, const std::vector<std::string>& files) {
  check_chat(options);
  if (std::count(files.begin(), files.end(), kStandardInput) > 1) {
    fail(ErrorKind::kUsage,
         "- (standard input) is given more than once, but can be read only once; give it once");
  }
  check_output(options.output, "output", files);
  if (options.validation_output.empty()) return;
  check_output(options.validation_output, "validation_output", files);
  if (is_same_file(options.output, options.validation_output)) {
    fail(ErrorKind::kUsage, "`output` and `validation_output` name the same file, ", options.output,
         "; choose two names");
  }
  if (!(options.validation_fraction > 0 && options.validation_fraction < 1)) {
    fail(ErrorKind::kUsage, "`validation_fraction` must be above 0 and below 1, but is ",
         options.validation_fraction, "; 0.1 is a tenth");
  }
}

ValidationShare validation_share(const TokenizeOptions& options, const std::vector<std::string>& files) {
  ValidationShare share;
  if (options.validation_output.empty()) return share;
  share = {.fraction = options.validation_fraction, .seed = options.seed};
  bool whole_only = options.json_lines || options.make_row_encoder ||
                    std::any_of(files.begin(), files.end(), [](const auto& file) {
                      return has_rows(file) || TextInput(file).size_bytes() < 0;
                    });
  if (options.validation_split == "end" && whole_only) {
    fail(ErrorKind::kUsage, "`validation_split` end needs texts whose size is known, but JSON lines, ",
         "tables, compressed files or standard input are among them; choose `validation_split` documents");
  }
  if (!options.validation_split.empty() && options.validation_split != "end" &&
      options.validation_split != "documents") {
    fail(ErrorKind::kUsage, "`validation_split` must be end or documents, but is \"",
         options.validation_split, "\"");
  }
  share.by_document = options.validation_split.empty() ? whole_only : options.validation_split == "documents";
  return share;
}

[[noreturn]] void refuse_empty_part(const TokenizeOptions& options, int64_t train, int64_t validation,
                                    const char* unit) {
  fail(ErrorKind::kData, "`validation_fraction` ", options.validation_fraction, " splits the texts into ",
       train, " ", unit, " of training and ", validation, " ", unit,
       " of validation, and neither may be empty; ", "give more text or another fraction");
}

/// Opens every file once, so that a wrong name is reported before the work. Returns all bytes; 0: unknown.
int64_t check_texts(const TokenizeOptions& options, const std::vector<std::string>& files,
                    const RowEncoder* encoder, const ValidationShare& share) {
  const int64_t bytes =
      check_files(files, encoder != nullptr ? encoder->columns() : std::vector{options.json_field},
                  options.json_lines || encoder != nullptr ? TextKind::kRows : TextKind::kPlain);
  if (share.fraction > 0 && !share.by_document) {
    int64_t validation = 0;
    for (const std::string& path : files) {
      validation += TextJobs::share_of_end(share, TextInput(path).size_bytes());
    }
    if (validation == 0 || validation == bytes)
      refuse_empty_part(options, bytes - validation, validation, "bytes");
  }
  return bytes;
}

TokenFormat output_format(const TokenizeOptions& options, const std::string& output, int64_t vocab_size) {
  bool four = util::extension_of(output) == kUint32Extension;
  TokenFormat format = options.format.value_or(four ? TokenFormat::kU32 : TokenFormat::kU16);
  if (has_two_bytes(format) && vocab_size > largest_id_of(TokenType::kUint16) + 1) {
    fail(ErrorKind::kUsage, "the tokenizer ", options.tokenizer, " has ", vocab_size,
         " tokens (with the document separator), but two bytes per token (", to_string(format),
         ") allow only 65536; name the output NAME", kUint32Extension,
         " or choose the `format` llm.c-u32, megatron or fairseq");
  }
  check_output_name(output, format, options.make_row_encoder != nullptr);
  return format;
}

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

std::vector<int64_t> separator_ids(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const std::optional<int64_t> end = tokenizer.end_of_text();
  return marker_ids("document_separator", options.document_separator, tokenizer, "eos",
                    end ? std::vector{*end} : std::vector<int64_t>{});
}

std::vector<int64_t> start_ids(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  return marker_ids("document_start", options.document_start, tokenizer, "bos", tokenizer.begin_of_text());
}

/// The forms of the rows of files, of which each file may have one.
class RowForms {
 public:
  /// Returns what is wrong with a row in this form; "" if nothing is, as without a form.
  std::string add(std::string_view form, const RowPlace& place) {
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

  /// Returns "recognised ShareGPT (conversations: from, value) in a.json and 2 more files"; "" without forms.
  std::string text() const {
    std::string text;
    for (const Files& each : files_) {
      text += concat(text.empty() ? "recognised " : ", ", each.form, " in ", each.first);
      if (each.more > 0) text += concat(" and ", each.more, each.more > 1 ? " more files" : " more file");
    }
    return text;
  }

 private:
  struct Files {
    std::string_view form, first;  ///< the form, and the first file with it
    int64_t more = 0;              ///< number of other files with it
  };
  std::vector<Files> files_;
  std::string_view path_, form_;  ///< the current file, and its form
};

/// Receives encoded jobs in order and writes their ids. Joins documents that were cut between two jobs: if a
/// part was not encoded exactly up to the next one, the next is encoded again from there.
class Collector {
 public:
  Collector(const Tokenizer& tokenizer, std::vector<int64_t> start, std::vector<int64_t> separator,
            TokenWriter& train, TokenWriter* validation, BadRows& bad_rows)
      : tokenizer_(tokenizer),
        start_(std::move(start)),
        separator_(std::move(separator)),
        train_(train),
        validation_(validation),
        bad_rows_(bad_rows) {}

  const DocumentLengths& lengths() const { return lengths_; }
  const RowForms& forms() const { return forms_; }
  int64_t documents_per_row() const { return documents_per_row_; }

  void add(const EncodedJob& encoded) {
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
      std::string_view text = std::string_view(encoded.job.text).substr(part.begin, part.end - part.begin);
      if (part.begins_document) {
        writer_ = result.validation ? validation_ : &train_;
        if (!start_.empty()) writer_->append(start_);
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
      writer_->append(ids_);
      document_tokens_ += static_cast<int64_t>(ids_.size());
      if (!part.ends_document) continue;
      writer_->end_document();
      lengths_.add(document_tokens_, part.place);
    }
  }

 private:
  /// Writes the documents of part `index` of a job, a row that a RowEncoder has encoded.
  void add_row(const EncodedJob& encoded, size_t ids_begin, size_t index) {
    const EncodedJob::EncodedPart& result = encoded.parts[index];
    const RowPlace& place = encoded.job.parts[index].place;
    writer_ = result.validation ? validation_ : &train_;
    const auto end = encoded.token_parts.begin() + static_cast<int64_t>(result.ids_end);
    int64_t documents = 0;
    for (auto next = encoded.token_parts.begin() + static_cast<int64_t>(ids_begin); next != end;
         ++documents) {
      const auto first = next;
      next = std::find(first + 1, end, TokenPart::kDocumentStart);
      const auto ids = encoded.ids.begin() + (first - encoded.token_parts.begin());
      writer_->append({ids, ids + (next - first)}, {first, next});
      writer_->end_document();
      lengths_.add(next - first, place);
    }
    if (documents_per_row_ == 0) documents_per_row_ = documents;
    if (documents == documents_per_row_) return;
    fail(ErrorKind::kData, to_string(place), " is ", documents == 1 ? "one answer" : "a pair of answers",
         ", but the rows before it are ", documents == 1 ? "pairs of answers" : "single answers",
         "; write them to an output of their own");
  }

  void join(const TextPart& part, std::string_view text) {
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

  void keep_rest(std::string_view text, size_t consumed, size_t stop) {
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

  const Tokenizer& tokenizer_;
  const std::vector<int64_t> start_, separator_;  ///< ids before and after every document
  TokenWriter& train_;
  TokenWriter* validation_;
  BadRows& bad_rows_;
  RowForms forms_;
  DocumentLengths lengths_;
  int64_t document_tokens_ = 0;  ///< number of tokens of the current document so far
  TokenWriter* writer_ = nullptr;
  int64_t documents_per_row_ = 0;  ///< number of documents of each row that a RowEncoder has encoded
  std::vector<int64_t> ids_;
  std::string carried_;  ///< text of the document before the next part that is not encoded yet
  size_t skip_ = 0;      ///< number of bytes at the beginning of the next part that are encoded already
};

int64_t assistant_tokens(const TokenWriter& writer) {
  return writer.count(TokenPart::kAssistant) + writer.count(TokenPart::kLastTurn);
}

}  // namespace

TokenizeReport tokenize(const TokenizeOptions& options) {
  if (options.texts.empty()) fail(ErrorKind::kUsage, "no text to tokenize was given; name at least one file");
  std::vector<std::string> files = expand_texts(options.texts);
  check(options, files);
  ValidationShare share = validation_share(options, files);
  std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer(options.tokenizer, {.split_special_tokens = options.split_special_tokens});
  // The encoder is made before threads are started, because it may fork.
  const std::unique_ptr<RowEncoder> encoder =
      options.make_row_encoder ? options.make_row_encoder(*tokenizer) : nullptr;
  const std::vector<int64_t> separator =
      encoder ? std::vector<int64_t>{} : separator_ids(options, *tokenizer);
  const std::vector<int64_t> start = encoder ? std::vector<int64_t>{} : start_ids(options, *tokenizer);
  int64_t vocab_size = tokenizer->vocab_size();
  for (const auto* ids : {&separator, &start}) {
    for (int64_t id : *ids) vocab_size = std::max(vocab_size, id + 1);
  }
  const TokenFormat format = output_format(options, options.output, vocab_size);
  int64_t text_bytes = check_texts(options, files, encoder.get(), share);

  const bool has_turns = encoder != nullptr;
  TokenWriter train(options.output, {format, vocab_size, has_turns});
  std::optional<TokenWriter> validation;
  if (!options.validation_output.empty()) {
    validation.emplace(options.validation_output,
                       TokenWriterOptions{output_format(options, options.validation_output, vocab_size),
                                          vocab_size, has_turns});
  }
  TextJobs jobs(files, options.json_lines, options.json_field, share, *tokenizer, encoder.get());
  BadRows bad_rows(options.skip_bad);
  Collector collector(*tokenizer, start, separator, train, validation ? &*validation : nullptr, bad_rows);
  jobs.encode(options.threads, [&](const EncodedJob& encoded) {
    collector.add(encoded);
    if (options.progress && text_bytes > 0)
      options.progress("tokenizing", encoded.job.read_bytes, text_bytes);
  });

  if (train.size() == 0 || (validation && validation->size() == 0)) {
    if (validation) refuse_empty_part(options, train.size(), validation->size(), "tokens");
    fail(ErrorKind::kData, "the texts contain no tokens; give texts that are not empty");
  }
  // Both files are on the disk before either gets its name.
  train.finish();
  if (validation) validation->finish();
  // The file with more documents counts: a text with a part in both files is not two documents.
  const int64_t documents = std::max(train.documents(), validation ? validation->documents() : 0);
  std::string warning;
  if (documents > 1 && separator.empty() && !encoder && options.document_separator.empty()) {
    warning =
        concat("nothing separates the ", documents, " documents, because the tokenizer ", options.tokenizer,
               " has no token that ends a text; `document_separator` id:", vocab_size,
               " (with model.vocab_size = ", vocab_size + 1,
               ") or text:'\\n\\n' separates them, and none joins them without this warning");
  }
  std::string note = collector.forms().text();
  if (!start.empty() && options.document_start.empty()) {
    note = concat("each document begins with the token ", start.front(),
                  ", which the tokenizer puts before texts; `document_start` none leaves it out");
  }
  train.commit();
  if (validation) validation->commit();
  return {.text_bytes = jobs.read_bytes(),
          .tokens = train.size(),
          .validation_tokens = validation ? validation->size() : 0,
          .documents = train.documents(),
          .validation_documents = validation ? validation->documents() : 0,
          .bad_rows = bad_rows,
          .assistant_tokens = assistant_tokens(train),
          .validation_assistant_tokens = validation ? assistant_tokens(*validation) : 0,
          .last_turn_tokens = train.count(TokenPart::kLastTurn),
          .validation_last_turn_tokens = validation ? validation->count(TokenPart::kLastTurn) : 0,
          .documents_per_row = std::max<int64_t>(collector.documents_per_row(), 1),
          .lengths = collector.lengths(),
          .warning = std::move(warning),
          .note = std::move(note)};
}

void decode(const TokenFiles& files, const Tokenizer& tokenizer, int64_t begin, int64_t count,
            const std::function<void(std::string_view)>& write) {
  TextDecoder decoder(tokenizer);
  files.scan(begin, begin + count, [&](int64_t, const std::vector<int64_t>& ids) {
    std::string text;
    for (int64_t id : ids) text += decoder.push(id);
    write(text);
  });
  write(decoder.finish());
}

}  // namespace fsdp::data
