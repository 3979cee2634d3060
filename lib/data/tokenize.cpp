#include "data/tokenize.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "data/token_files.h"
#include "data/token_writer.h"
#include "data/tokenizer.h"
#include "util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using util::ErrorKind;
using util::fail;

constexpr int64_t kChunkBytes = 1 << 20;

/// A text that is read once from front to back.
class TextReader {
 public:
  explicit TextReader(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0)
      refuse("cannot be opened (" + util::errno_text(errno) + "); give the path of a readable file");
    try {
      examine();
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  ~TextReader() { ::close(fd_); }
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  int64_t size() const { return size_; }

  /// Encodes the next `count` bytes into `writer`.
  void encode_next(int64_t count, const Tokenizer& tokenizer, TokenWriter& writer) {
    std::vector<int64_t> ids;
    while (count > 0) {
      buffer_.resize(static_cast<size_t>(std::min(count, kChunkBytes)));
      ssize_t got = ::read(fd_, buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refuse("cannot be read (" + util::errno_text(errno) + "); check the disk and run again");
      if (got == 0) refuse("became shorter while it was read; run again when nothing writes to it");
      ids.clear();
      tokenizer.encode(std::string_view(buffer_).substr(0, static_cast<size_t>(got)), ids);
      writer.append(ids);
      count -= got;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    fail(ErrorKind::kData, "the text ", path_, " ", reason);
  }

  void examine() {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) refuse("cannot be examined (" + util::errno_text(errno) + ")");
    if (S_ISDIR(status.st_mode)) refuse("is a folder; give the files in it one by one");
    if (!S_ISREG(status.st_mode)) refuse("is not a regular file; write the text to a file first");
    if (status.st_size == 0) refuse("is empty; leave it out");
    size_ = status.st_size;
  }

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::string buffer_;
};

/// The file that a path will name, even if it does not exist yet.
fs::path resolved(const std::string& path) {
  std::error_code error;
  fs::path canonical = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? fs::path(path) : canonical;
}

void check_output(const std::string& output, const char* option, const TokenizeOptions& options) {
  std::error_code error;
  if (output.empty() || !fs::path(output).has_filename() || fs::is_directory(output, error)) {
    fail(ErrorKind::kUsage, option, " \"", output, "\" is a folder where the name of a file was expected; ",
         "add a file name, such as train.bin");
  }
  for (const std::string& text : options.texts) {
    if (resolved(text) == resolved(output) || fs::equivalent(text, output, error)) {
      fail(ErrorKind::kUsage, option, " ", output,
           " is one of the texts, which would be lost; choose another name");
    }
  }
}

void check(const TokenizeOptions& options) {
  if (options.texts.empty()) fail(ErrorKind::kUsage, "no text to tokenize was given; name at least one file");
  check_output(options.output, "--output", options);
  if (options.validation_output.empty()) return;
  check_output(options.validation_output, "--validation-output", options);
  std::error_code error;
  if (resolved(options.output) == resolved(options.validation_output) ||
      fs::equivalent(options.output, options.validation_output, error)) {
    fail(ErrorKind::kUsage, "--output and --validation-output name the same file, ", options.output,
         "; choose two names");
  }
  if (!(options.validation_fraction > 0 && options.validation_fraction < 1)) {
    fail(ErrorKind::kUsage, "--validation-fraction is ", options.validation_fraction,
         " where a number above 0 and below 1 was expected; give 0.1 for a tenth");
  }
}

/// Bytes at the end of a text that go to the validation part.
int64_t validation_share(const TokenizeOptions& options, int64_t text_bytes) {
  if (options.validation_output.empty()) return 0;
  auto share =
      static_cast<int64_t>(std::llround(static_cast<double>(text_bytes) * options.validation_fraction));
  return std::clamp<int64_t>(share, 0, text_bytes);
}

void check_shares(const TokenizeOptions& options) {
  int64_t train = 0, validation = 0;
  for (const std::string& path : options.texts) {
    TextReader text(path);
    int64_t share = validation_share(options, text.size());
    validation += share;
    train += text.size() - share;
  }
  if (train == 0 || (validation == 0 && !options.validation_output.empty())) {
    fail(ErrorKind::kData, "--validation-fraction ", options.validation_fraction, " splits the texts into ",
         train, " bytes of training and ", validation, " bytes of validation, and neither may be empty; ",
         "give more text or another fraction");
  }
}

}  // namespace

TokenizeReport tokenize(const TokenizeOptions& options) {
  check(options);
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  FSDP_CHECK(tokenizer->vocab_size() <= kMaxVocabSize);
  check_shares(options);

  TokenWriter train(options.output);
  std::optional<TokenWriter> validation;
  if (!options.validation_output.empty()) validation.emplace(options.validation_output);

  TokenizeReport report;
  for (const std::string& path : options.texts) {
    TextReader text(path);
    int64_t share = validation_share(options, text.size());
    text.encode_next(text.size() - share, *tokenizer, train);
    if (validation) text.encode_next(share, *tokenizer, *validation);
    report.text_bytes += text.size();
  }
  // Both are on the disk before either gets its name.
  train.finish();
  if (validation) validation->finish();
  train.commit();
  if (validation) validation->commit();
  report.tokens = train.size();
  report.validation_tokens = validation ? validation->size() : 0;
  return report;
}

}  // namespace fsdp::data
