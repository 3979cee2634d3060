#pragma once

// The tokenizer and the chat template in the metadata of a GGUF file, as the files in which Hugging Face's
// folders have them: tokenizer.json, tokenizer_config.json and generation_config.json.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/objects/local_copy.h"
#include "base/util/error.h"

namespace fsdp::data {

/// How a pre-tokenizer of llama.cpp splits texts; one entry for several that split alike.
struct GgufPreTokenizer {
  std::vector<const char*> names;  ///< the first is written to files
  std::vector<const char*> patterns;
  bool ignores_merges;
  bool adds_begin;  ///< whether texts begin with a token if the file does not say
};
const std::vector<GgufPreTokenizer>& gguf_pre_tokenizers();

/// Returns the contents of the files by their names; nothing if the file has no vocabulary. Throws
/// Error(kData) for a kind of vocabulary that is not byte pair encoding, for a pre-tokenizer that
/// gguf_pre_tokenizers() lacks, and for lists that do not fit each other.
std::map<std::string, std::string> gguf_tokenizer_files(const std::filesystem::path& gguf);

/// These files in a temporary folder, which the destructor removes. Throws Error(kIo) too.
class UnpackedTokenizer {
 public:
  explicit UnpackedTokenizer(const std::filesystem::path& gguf);
  ~UnpackedTokenizer();
  UnpackedTokenizer(const UnpackedTokenizer&) = delete;
  UnpackedTokenizer& operator=(const UnpackedTokenizer&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// A message about the folder as one about the GGUF file.
  std::string about_file(std::string message) const;

 private:
  std::filesystem::path gguf_, folder_;
};

/// Whether the name of a tokenizer (make_tokenizer()) is a GGUF file.
bool names_gguf(const std::string& tokenizer);

/// Whether it is one with a vocabulary.
bool holds_tokenizer(const std::string& path);

/// Calls `body` with the name of a tokenizer, in place of a GGUF file's with the folder of its files.
template <typename Body>
auto with_unpacked(const std::string& tokenizer, const Body& body) {
  const std::string path = objects::local_copy(tokenizer).string();
  if (!names_gguf(path)) return body(path);
  const UnpackedTokenizer unpacked(path);
  try {
    return body(unpacked.folder().string());
  } catch (const util::Error& error) {
    fail(error.kind(), unpacked.about_file(error.what()));
  }
}

}  // namespace fsdp::data
