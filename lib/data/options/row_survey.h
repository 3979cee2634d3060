#pragma once

// Statistics of rows of conversations: how many targets count, and how many conversations are divided among
// rows. A divided conversation has its prompt only in the first of its rows.

#include <cstdint>
#include <string>

#include "data/options/options.h"

namespace fsdp::data {

struct RowSurvey {
  int64_t rows = 0;
  int64_t without_targets = 0;  ///< rows in which no target counts
  int64_t conversations = 0;
  int64_t divided = 0;  ///< conversations whose tokens are in more than one row
  int64_t longest = 0;  ///< tokens of the longest conversation

  RowSurvey& operator+=(const RowSurvey& other);
  bool loses_tokens() const { return divided > 0 || without_targets > 0; }
};

/// Returns "300 conversations, the longest 812 tokens; 12 are divided among rows of 64 tokens, and 9 of 350
/// rows have no target that counts".
std::string survey_text(const RowSurvey& survey, const DataOptions& options);

/// Returns the settings with which no conversation is divided: "data.sequence_length = 811".
std::string survey_remedy(const RowSurvey& survey, const DataOptions& options);

/// Throws Error(kData) if there are rows but none has a target that counts. `key`: the files' config key.
void require_targets(const RowSurvey& survey, const DataOptions& options, const char* key);

}  // namespace fsdp::data
