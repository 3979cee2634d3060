#pragma once

// Tokenizers turn text into token ids and back.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// Stateless and thread-safe. Text may be encoded piece by piece, wherever it is cut: the ids of a whole text
/// are those of its pieces one after another.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  /// Ids are 0 to vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;
  /// Appends the ids of `text`.
  virtual void encode(std::string_view text, std::vector<int64_t>& ids) const = 0;
  /// Throws Error(kData) for an id outside the vocabulary.
  virtual std::string decode(const std::vector<int64_t>& ids) const = 0;
};

/// The names that make_tokenizer knows.
std::vector<std::string> tokenizer_names();

/// "bytes": an id is the value of a byte, vocabulary 256. Throws Error(kUsage) for an unknown name.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace fsdp::data
