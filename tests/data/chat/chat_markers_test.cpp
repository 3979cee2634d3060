#include "data/chat/chat_markers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/chat_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ChatMarkers, AreWhatLooksLikeASpecialToken) {
  EXPECT_THAT(markers_in("<|im_start|>user\n<|im_end|>\n<|im_start|>"),
              ElementsAre("<|im_start|>", "<|im_end|>"));
  EXPECT_THAT(markers_in("<s>[INST] a [/INST]</s><start_of_turn>"),
              ElementsAre("<s>", "[INST]", "[/INST]", "</s>", "<start_of_turn>"));
  EXPECT_THAT(markers_in("<\xef\xbd\x9c"
                         "User\xef\xbd\x9c>[TOOL_CALLS]"),
              ElementsAre("<\xef\xbd\x9c"
                          "User\xef\xbd\x9c>",
                          "[TOOL_CALLS]"));
  EXPECT_THAT(markers_in("<tools> <<SYS>> <think> a < b > c <|> <||> <| a |> [1] [OK] [a] [ INST ] x[0] <"),
              IsEmpty());
  EXPECT_THAT(markers_in("<<|a|>"), ElementsAre("<|a|>"));
}

TEST(ChatMarkers, OfAConversationsOwnTextsAreNotTheTemplates) {
  const auto tokenizer = make_tokenizer(kChatFolder + "qwen2");
  MarkerCheck markers(*tokenizer, "t.jinja");
  const OrderedJson messages = {{{"role", "user"}, {"content", "what is <|other|>?"}}};
  markers.check("<|im_start|>what is <|other|>?", messages, nullptr);
  markers.check("<|other|>", OrderedJson::array(), {{{"name", "<|other|>"}}});
  expect_error(ErrorKind::kData, {"the chat template t.jinja writes <|other|>", "`spell_markers`"},
               [&] { markers.check("<|im_start|><|other|>", OrderedJson::array(), nullptr); });
}

}  // namespace
}  // namespace fsdp::data
