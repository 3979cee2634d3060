#include "tools/generate/tasks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <sstream>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "tools/generate/request_line.h"

namespace fsdp::generate {
namespace {

constexpr const char* kQuestion =
    R"({"context": "...", "choices": ["...", "..."], "answer": 0}, {"text": "..."} or )"
    R"({"context": "...", "until": ["..."], "answer": "..."})";
constexpr const char* kSpaces = " \t\n\r\f\v";

double characters(const std::string& text) {
  return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// The number of pieces between runs of spaces, as the harness counts words: those before the first and
/// behind the last count too.
int64_t words_in(const std::string& text) {
  int64_t words = 1;
  for (size_t at = text.find_first_of(kSpaces); at != std::string::npos;) {
    ++words;
    const size_t end = text.find_first_not_of(kSpaces, at);
    at = end == std::string::npos ? end : text.find_first_of(kSpaces, end);
  }
  return words;
}

std::string stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(kSpaces);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

/// A share of the questions, of which `right` many count.
TaskMetric share_of(const std::string& name, int64_t right, int64_t all) {
  const double n = static_cast<double>(all), share = static_cast<double>(right) / n;
  TaskMetric metric{.name = name, .value = share};
  if (all > 1) metric.standard_error = std::sqrt(share * (1 - share) / (n - 1));
  return metric;
}

}  // namespace

Task::Task(const std::filesystem::path& file) : name_(file.stem().string()) {
  std::istringstream lines(util::read_file(file));
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    RequestLine from(util::concat(file.string(), ", line ", number), line, kQuestion);
    const Kind kind = from.has("choices") ? Kind::kChoices : from.has("text") ? Kind::kTexts : Kind::kAnswers;
    if (!questions_.empty() && kind != kind_)
      from.refuse("another kind of question than in the lines before");
    kind_ = kind;
    from.take("id");
    Question question{.first = requests_.size()};
    Request request;
    if (kind == Kind::kTexts) {
      request.kind = Request::Kind::kText;
      request.text = *from.text("text");
      if (request.text.empty()) from.refuse("a text without a character");
      requests_.push_back(request);
    } else {
      const auto context = from.text("context");
      if (!context) from.refuse("no context");
      request.context = *context;
      if (kind == Kind::kChoices) {
        const std::vector<std::string> choices = from.texts("choices");
        const auto answer = from.count("answer", 0);
        if (choices.size() < 2) from.refuse(util::concat(choices.size(), " choices"));
        if (!answer || *answer >= std::ssize(choices)) {
          from.refuse(answer ? util::concat("answer ", *answer, " of ", choices.size(), " choices, from 0 on")
                             : "no answer");
        }
        question.choice = static_cast<size_t>(*answer);
        for (const std::string& choice : choices) {
          request.text = choice;
          requests_.push_back(request);
        }
      } else {
        request.kind = Request::Kind::kUntil;
        if (!from.has("until")) from.refuse("no choices, text or until");
        request.until = from.texts("until");
        request.max_new_tokens = from.count("max_new_tokens");
        const auto answer = from.text("answer");
        if (!answer) from.refuse("no answer");
        question.answer = *answer;
        requests_.push_back(request);
      }
    }
    from.finish();
    question.requests = requests_.size() - question.first;
    questions_.push_back(std::move(question));
  }
  if (questions_.empty())
    fail(ErrorKind::kUsage, file.string(), ": expected ", kQuestion, " a line; found none");
}

std::vector<TaskMetric> Task::metrics(const std::vector<RequestScore>& scores) const {
  FSDP_CHECK(kind_ != Kind::kAnswers && scores.size() == requests_.size());
  return kind_ == Kind::kChoices ? of_choices(scores) : of_texts(scores);
}

std::vector<TaskMetric> Task::of_choices(const std::vector<RequestScore>& scores) const {
  const auto right_by = [&](const std::function<double(const Request&)>& length) {
    int64_t right = 0;
    for (const Question& question : questions_) {
      size_t best = 0;
      double most = -std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < question.requests; ++i) {
        const size_t at = question.first + i;
        const double likelihood = scores[at].log_likelihood / length(requests_[at]);
        if (likelihood > most) {
          most = likelihood;
          best = i;
        }
      }
      right += best == question.choice ? 1 : 0;
    }
    return right;
  };
  const auto metric = [&](const std::string& name, const std::function<double(const Request&)>& length) {
    return share_of(name, right_by(length), questions());
  };
  return {metric("acc", [](const Request&) { return 1; }),
          metric("acc_norm", [](const Request& choice) { return characters(choice.text); }),
          metric("acc_bytes", [](const Request& choice) { return static_cast<double>(choice.text.size()); })};
}

std::vector<TaskMetric> Task::of_texts(const std::vector<RequestScore>& scores) const {
  double likelihood = 0, words = 0, bytes = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    likelihood += scores[i].log_likelihood;
    words += static_cast<double>(words_in(requests_[i].text));
    bytes += static_cast<double>(requests_[i].text.size());
  }
  return {{.name = "word_perplexity", .value = std::exp(-likelihood / words)},
          {.name = "byte_perplexity", .value = std::exp(-likelihood / bytes)},
          {.name = "bits_per_byte", .value = -likelihood / bytes / std::numbers::ln2}};
}

std::vector<TaskMetric> Task::metrics(const std::vector<std::string>& texts) const {
  FSDP_CHECK(kind_ == Kind::kAnswers && texts.size() == requests_.size());
  int64_t right = 0;
  for (const Question& question : questions_) {
    right += stripped(texts[question.first]) == stripped(question.answer) ? 1 : 0;
  }
  return {share_of("exact_match", right, questions())};
}

std::string metrics_text(const std::vector<TaskMetric>& metrics) {
  std::vector<std::string> words;
  for (const TaskMetric& metric : metrics) {
    words.push_back(util::concat(
        metric.name, " ", util::fixed(metric.value, 4),
        metric.standard_error ? util::concat(" (+- ", util::fixed(*metric.standard_error, 4), ")") : ""));
  }
  return util::join(words, ", ");
}

}  // namespace fsdp::generate
