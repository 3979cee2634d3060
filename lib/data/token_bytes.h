#pragma once

// How much text tokens stand for: losses a token depend on the tokenizer, losses a byte do not.

#include <cstdint>
#include <optional>
#include <vector>

#include "data/tokenizer.h"

namespace fsdp::data {

class TokenBytes {
 public:
  /// Asks for every id once.
  explicit TokenBytes(const Tokenizer& tokenizer);

  /// Bytes of the text that so many ids stand for; ids below 0 count for nothing. Nothing when an id is not
  /// in the vocabulary: the tokens are of another tokenizer.
  std::optional<int64_t> count(const int64_t* ids, int64_t length) const;

 private:
  std::vector<int32_t> bytes_;  ///< [vocabulary]
};

}  // namespace fsdp::data
