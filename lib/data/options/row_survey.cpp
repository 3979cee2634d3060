#include "data/options/row_survey.h"

#include <algorithm>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {

using util::with_commas;

RowSurvey& RowSurvey::operator+=(const RowSurvey& other) {
  rows += other.rows;
  without_targets += other.without_targets;
  conversations += other.conversations;
  divided += other.divided;
  longest = std::max(longest, other.longest);
  return *this;
}

std::string survey_text(const RowSurvey& survey, const DataOptions& options) {
  return concat(with_commas(survey.conversations), " conversations, the longest ",
                with_commas(survey.longest), " tokens; ", with_commas(survey.divided),
                " are divided among rows of ", options.sequence_length, " tokens, and ",
                with_commas(survey.without_targets), " of ", with_commas(survey.rows),
                " rows have no target that counts");
}

std::string survey_remedy(const RowSurvey& survey, const DataOptions& options) {
  return concat(options.documents == DocumentTreatment::kSplit ? "" : "data.documents = split and ",
                "data.sequence_length = ", std::max<int64_t>(survey.longest - 1, 1));
}

void require_targets(const RowSurvey& survey, const DataOptions& options, const char* key) {
  if (survey.rows == 0 || survey.without_targets < survey.rows) return;
  fail(ErrorKind::kData, key,
       ": expected rows with targets that count by data.train_on = ", options.train_on.name(), ", but found ",
       survey_text(survey, options), "; set ", survey_remedy(survey, options),
       ", or use shorter conversations");
}

}  // namespace fsdp::data
