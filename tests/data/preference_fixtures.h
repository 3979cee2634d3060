#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/options/datasets.h"
#include "data/tokens/token_writer.h"
#include "support/temporary_folder.h"

namespace fsdp::data {

inline constexpr int64_t kNoTarget = kIgnoredTarget;

/// A document of a file of preferences.
struct Answer {
  std::vector<int64_t> prompt, completion;
  bool preferred;
};

/// Writes these documents as fsdp-data tokenize --preference does.
inline std::string write_answers(const testing::TemporaryFolder& folder, const std::string& name,
                                 const std::vector<Answer>& answers) {
  TokenWriter writer(folder / name, {.format = TokenFormat::kU16, .vocab_size = 1000, .has_turns = true});
  for (const Answer& answer : answers) {
    std::vector<int64_t> ids = answer.prompt;
    ids.insert(ids.end(), answer.completion.begin(), answer.completion.end());
    std::vector<TokenPart> parts(answer.prompt.size(), TokenPart::kContext);
    parts.resize(ids.size(), answer.preferred ? TokenPart::kLastTurn : TokenPart::kAssistant);
    parts.front() = TokenPart::kDocumentStart;
    writer.append(ids, parts);
  }
  writer.finish();
  writer.commit();
  return folder / name;
}

/// Two pairs of seven and eight inputs.
inline std::vector<Answer> two_pairs() {
  return {{{10, 11}, {12, 13, 3}, true},
          {{10, 11}, {14, 3}, false},
          {{20}, {21, 22, 3}, true},
          {{20}, {23, 24, 25, 26, 3}, false}};
}

}  // namespace fsdp::data
