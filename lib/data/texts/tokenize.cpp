#include "data/texts/tokenize.h"

#include <algorithm>
#include <filesystem>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "data/options/text_names.h"
#include "data/texts/document_collector.h"
#include "data/texts/text_input.h"
#include "data/texts/text_jobs.h"
#include "data/tokenizers/utf8.h"
#include "data/tokens/token_writer.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

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

/// The output of a document: the training or the validation tokens.
class WriterSink final : public TokenSink {
 public:
  WriterSink(TokenWriter& train, TokenWriter* validation) : train_(train), validation_(validation) {}

  void choose(bool validation) override { writer_ = validation ? validation_ : &train_; }
  void append(const std::vector<int64_t>& ids) override { writer_->append(ids); }
  void append(const std::vector<int64_t>& ids, const std::vector<TokenPart>& parts) override {
    writer_->append(ids, parts);
  }
  void end_document() override { writer_->end_document(); }

 private:
  TokenWriter& train_;
  TokenWriter* validation_;
  TokenWriter* writer_ = nullptr;
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
      encoder ? std::vector<int64_t>{} : separator_ids(options.document_separator, *tokenizer);
  const std::vector<int64_t> start =
      encoder ? std::vector<int64_t>{} : start_ids(options.document_start, *tokenizer);
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
  WriterSink sink(train, validation ? &*validation : nullptr);
  DocumentCollector collector(*tokenizer, start, separator, sink, bad_rows);
  jobs.encode(options.threads, [&](const EncodedJob& encoded) {
    collector.add(encoded);
    if (options.progress && text_bytes > 0)
      options.progress("tokenizing", encoded.job.read_bytes, text_bytes);
    return true;
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
