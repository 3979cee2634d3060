#pragma once

// The input of tokenize() and train_tokenizer(): files, patterns of files, standard input.

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::data {

/// Names standard input.
inline constexpr const char* kStandardInput = "-";

/// The files that `texts` name, in order: a name with *, ? or [ that is not a file is a pattern, replaced by
/// the files that match it, sorted. Throws Error(kData) when none does.
std::vector<std::string> expand_patterns(const std::vector<std::string>& texts);

/// Whether the file holds one JSON object per line, by its name: .jsonl or .ndjson.
bool is_json_lines(const std::string& path);

/// A text that is read once from front to back. Not thread-safe.
class TextInput {
 public:
  /// Opens the file. All failures are Errors of kind kData.
  explicit TextInput(const std::string& path);
  ~TextInput();
  TextInput(const TextInput&) = delete;
  TextInput& operator=(const TextInput&) = delete;

  const std::string& path() const { return path_; }
  /// -1 for standard input.
  int64_t size_bytes() const { return size_bytes_; }

  /// Appends up to `bytes` bytes to `buffer` and returns how many; fewer only at the end.
  int64_t read(int64_t bytes, std::string& buffer);

  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  void examine();

  std::string path_;
  int fd_ = -1;
  int64_t size_bytes_ = -1;
  int64_t read_bytes_ = 0;
};

}  // namespace fsdp::data
