#include "tools/generate/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "base/util/error.h"
#include "support/temporary_folder.h"

namespace fsdp::generate {
namespace {

using ::testing::HasSubstr;

class Tasks : public ::testing::Test {
 protected:
  Task task(const std::string& text, const std::string& name = "quiz") {
    const std::filesystem::path file = folder_.path() / (name + ".jsonl");
    std::ofstream(file) << text;
    return Task(file);
  }
  std::string refusal(const std::string& text) {
    try {
      task(text);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Tasks, OfChoicesHaveTheAccuraciesOfTheHarness) {
  const Task quiz = task(R"({"context": "Q", "choices": [" a", " long"], "answer": 1, "id": 3}
{"context": "Q", "choices": [" é", " ab", " abc"], "answer": 0}
)");
  EXPECT_EQ(quiz.name(), "quiz");
  EXPECT_EQ(quiz.kind(), Task::Kind::kChoices);
  EXPECT_EQ(quiz.questions(), 2);
  ASSERT_EQ(quiz.requests().size(), 5u);
  EXPECT_EQ(quiz.requests()[4].text, " abc");
  EXPECT_EQ(quiz.requests()[4].context, "Q");
  // By length, the first question is right: -4 / 5 > -2 / 2. The second is right by bytes alone: -3 / 3
  // against -3.3 / 3, but -3 / 2 by characters.
  const auto found = quiz.metrics({{.log_likelihood = -2},
                                   {.log_likelihood = -4},
                                   {.log_likelihood = -3},
                                   {.log_likelihood = -3.3},
                                   {.log_likelihood = -4.4}});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, "acc");
  EXPECT_EQ(found[0].value, 0.5);
  EXPECT_NEAR(found[0].standard_error.value(), 0.5, 1e-12);  // sqrt(1/4 / 1)
  EXPECT_EQ(found[1].name, "acc_norm");
  EXPECT_EQ(found[1].value, 0.5);
  EXPECT_EQ(found[2].name, "acc_bytes");
  EXPECT_EQ(found[2].value, 1);
}

TEST_F(Tasks, OfTextsHavePerplexities) {
  const Task texts = task("{\"text\": \"two words\"}\n{\"text\": \"é\"}\n");
  const auto found = texts.metrics({{.log_likelihood = -6}, {.log_likelihood = -3}});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, "word_perplexity");
  EXPECT_NEAR(found[0].value, std::exp(9.0 / 3), 1e-9);
  EXPECT_NEAR(found[1].value, std::exp(9.0 / 11), 1e-9);
  EXPECT_NEAR(found[2].value, 9.0 / 11 / std::log(2), 1e-9);
}

TEST_F(Tasks, OfAnswersCompareTextsWithoutSpacesAround) {
  const Task answers = task(R"({"context": "Q", "until": ["\n"], "answer": "yes"}
{"context": "Q", "until": "x", "answer": " no ", "max_new_tokens": 4}
{"context": "Q", "until": [], "answer": "maybe"}
)");
  EXPECT_EQ(answers.kind(), Task::Kind::kAnswers);
  EXPECT_EQ(answers.requests()[1].max_new_tokens, 4);
  const auto found = answers.metrics(std::vector<std::string>{" yes\n", "no", "Maybe"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "exact_match");
  EXPECT_NEAR(found[0].value, 2.0 / 3, 1e-12);
  EXPECT_EQ(metrics_text(found), "exact_match 0.6667 (+- 0.3333)");
}

TEST_F(Tasks, RefuseLinesThatAreNoQuestions) {
  const auto expect = [&](const std::string& line, const std::string& found) {
    const std::string good = R"({"context": "Q", "choices": ["a", "b"], "answer": 1})";
    EXPECT_THAT(refusal(good + "\n" + line),
                ::testing::AllOf(HasSubstr("quiz.jsonl, line 2: expected {"), HasSubstr("found " + found)));
  };
  expect(R"({"context": "Q", "choices": ["a"], "answer": 0})", "1 choices");
  expect(R"({"context": "Q", "choices": ["a", "b"], "answer": 2})", "answer 2 of 2 choices, from 0 on");
  expect(R"({"context": "Q", "choices": ["a", "b"]})", "no answer");
  expect(R"({"context": "Q", "choices": ["a", "b"], "answer": -1})", "answer = -1");
  expect(R"({"choices": ["a", "b"], "answer": 1})", "no context");
  expect(R"({"text": "a"})", "another kind of question");
  expect(R"({"context": "Q", "choices": ["a", "b"], "answer": 1, "gold": 1})", "the key gold");
  expect("{", "");
  EXPECT_THAT(refusal("\n"), HasSubstr("found none"));
  EXPECT_THAT(refusal(R"({"context": "Q"})"), HasSubstr("no choices, text or until"));
}

}  // namespace
}  // namespace fsdp::generate
