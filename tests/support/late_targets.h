#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/tokens/token_writer.h"
#include "support/token_file.h"

namespace fsdp::testing {

/// Writes one conversation of whole samples and `behind` more tokens. In the first `without` samples the
/// assistant says nothing.
inline void write_late_targets(const std::filesystem::path& path, int64_t samples, int64_t without,
                               int64_t sequence_length, int64_t vocab_size, int64_t behind = 0) {
  data::TokenWriter writer(path, {.has_turns = true});
  std::vector<int64_t> ids;
  std::vector<data::TokenPart> parts;
  for (int64_t i = 0; i <= samples * sequence_length + behind; ++i) {
    ids.push_back(test_token(i, vocab_size));
    parts.push_back(i == 0                           ? data::TokenPart::kDocumentStart
                    : i <= without * sequence_length ? data::TokenPart::kContext
                                                     : data::TokenPart::kLastTurn);
  }
  writer.append(ids, parts);
  writer.finish();
  writer.commit();
}

}  // namespace fsdp::testing
