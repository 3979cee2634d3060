#pragma once

// Tasks of an evaluation: files of questions, a JSON object a line, all of one kind:
//   {"context": "Q: 1 + 1?\nA:", "choices": [" 2", " 3"], "answer": 0}
//   {"text": "To be, or not to be"}
//   {"context": "Q: 1 + 1?\nA:", "until": ["\n"], "answer": "2"}
// Names and definitions of the metrics are those of lm-evaluation-harness:
//   choices  acc: share of the questions whose answer is the likeliest choice; acc_norm and acc_bytes: the
//            same of log-likelihoods divided by characters and by bytes
//   texts    word_perplexity, byte_perplexity, bits_per_byte
//   answers  exact_match: share of the texts that equal the answer, without spaces around them

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/generate/requests.h"

namespace fsdp::generate {

struct TaskMetric {
  std::string name;
  double value = 0;
  std::optional<double> standard_error = std::nullopt;  ///< of means over questions
};

class Task {
 public:
  enum class Kind { kChoices, kTexts, kAnswers };

  /// Reads a file. Throws Error(kUsage) that names the line for one that is no question of the file's kind,
  /// for a file without questions, and Error(kIo) for one that cannot be read.
  explicit Task(const std::filesystem::path& file);

  const std::string& name() const { return name_; }  ///< the file's, without its extension
  Kind kind() const { return kind_; }
  int64_t questions() const { return static_cast<int64_t>(questions_.size()); }
  /// Requests to score or, for answers, to generate: all choices of the first question, then the next one's.
  const std::vector<Request>& requests() const { return requests_; }

  /// scores: of requests(). Requires: no answers.
  std::vector<TaskMetric> metrics(const std::vector<RequestScore>& scores) const;
  /// texts: of requests(). Requires: answers.
  std::vector<TaskMetric> metrics(const std::vector<std::string>& texts) const;

 private:
  struct Question {
    size_t first = 0, requests = 0;
    size_t choice = 0;   ///< the right one
    std::string answer;  ///< the right text
  };
  std::vector<TaskMetric> of_choices(const std::vector<RequestScore>& scores) const;
  std::vector<TaskMetric> of_texts(const std::vector<RequestScore>& scores) const;

  std::string name_;
  Kind kind_ = Kind::kTexts;
  std::vector<Request> requests_;
  std::vector<Question> questions_;
};

/// Returns "acc 0.4312 (+- 0.0155), acc_norm 0.4420 (+- 0.0155)".
std::string metrics_text(const std::vector<TaskMetric>& metrics);

}  // namespace fsdp::generate
