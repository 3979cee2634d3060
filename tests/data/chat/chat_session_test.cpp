#include "data/chat/chat_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "data/chat/chat_source.h"
#include "data/tokenizers/tokenizer.h"
#include "support/source_folder.h"

namespace fsdp::data {
namespace {

using ::testing::HasSubstr;

class ChatSessionOf : public ::testing::Test {
 protected:
  std::string text_of(const std::vector<int64_t>& ids) const {
    std::string text;
    for (const int64_t id : ids) text += tokenizer_->bytes_of(id, false).value_or("");
    return text;
  }

  const std::string folder_ = fsdp::testing::source_folder() + "/tests/data/chat/qwen2";
  const std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer(folder_);
};

TEST_F(ChatSessionOf, RendersAllThatWasSaidAndTheBeginningOfAnAnswer) {
  ChatSession session(*tokenizer_, find_chat_template("chatml", folder_), "Be brief.");
  EXPECT_EQ(
      text_of(session.ask("1+1?", 1000)),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
  session.answer("2");
  EXPECT_EQ(text_of(session.ask("2+2?", 1000)),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
            "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(session.forgotten(), 0);
}

TEST_F(ChatSessionOf, ForgetsTheOldestQuestionsButNotTheSystemPrompt) {
  ChatSession session(*tokenizer_, find_chat_template("chatml", folder_), "Be brief.");
  const auto one = static_cast<int64_t>(session.ask("1+1?", 1000).size());
  session.answer("2");
  const std::string text = text_of(session.ask("3+3?", one));
  EXPECT_EQ(session.forgotten(), 2);
  EXPECT_THAT(text, HasSubstr("Be brief."));
  EXPECT_THAT(text, HasSubstr("3+3?"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("1+1?")));
  session.answer("6");
  try {
    session.ask("What is the sum of four and four?", one);
    FAIL() << "nothing was thrown";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("must have at most"));
  }
  EXPECT_EQ(static_cast<int64_t>(session.ask("4+4?", one).size()), one) << "the refused message is not there";
}

TEST_F(ChatSessionOf, KnowsTheTokenThatEndsAnswers) {
  EXPECT_EQ(ChatSession(*tokenizer_, find_chat_template("chatml", folder_), "").ends_of_answers(),
            (std::vector<int64_t>{*tokenizer_->id_of("<|im_end|>")}));
  const ChatTemplateSource plain{.text =
                                     "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                                     "{% if add_generation_prompt %}assistant: {% endif %}",
                                 .name = "plain"};
  EXPECT_TRUE(ChatSession(*tokenizer_, plain, "").ends_of_answers().empty());
}

}  // namespace
}  // namespace fsdp::data
