#include "data/chat/chat_tokens.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/util/file.h"
#include "data/chat_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

/// Markers and ids that were added, as text.
std::string added_text(const std::vector<AddedMarker>& added) {
  std::string text;
  for (const AddedMarker& marker : added) text += concat(marker.text, " ", marker.id, "\n");
  return text;
}

std::vector<int64_t> ids_of(const std::string& tokenizer, const std::string& text) {
  std::vector<int64_t> ids;
  make_tokenizer(tokenizer)->encode(text, ids);
  return ids;
}

TEST(AddMarkers, GivesEachMarkerOfTheTemplateOneToken) {
  const TemporaryFolder folder;
  const std::string from = kChatFolder + "llama3", to = folder / "new";
  const int64_t before = make_tokenizer(from)->vocab_size();
  EXPECT_GT(ids_of(from, "<|im_start|>").size(), 1u);
  EXPECT_EQ(added_text(add_markers({.chat_template = "chatml"}, from, to)),
            concat("<|im_start|> ", before, "\n<|im_end|> ", before + 1, "\n"));
  EXPECT_EQ(make_tokenizer(to)->vocab_size(), before + 2);
  EXPECT_EQ(ids_of(to, "<|im_start|>user<|im_end|>").front(), before);
  EXPECT_EQ(ids_of(to, "<|im_start|>user<|im_end|>").back(), before + 1);
  const std::string text = "the quick <|eot_id|> brown\n";
  EXPECT_EQ(ids_of(to, text), ids_of(from, text));
  // The folder has the template, and needs no more tokens.
  std::vector<int64_t> ids;
  std::vector<TokenPart> parts;
  make_chat_encoder({}, *make_tokenizer(to), to)->encode(R"({"prompt": "a", "completion": "b"})", ids, parts);
  EXPECT_EQ(ids.front(), before);
  EXPECT_EQ(added_text(add_markers({}, to, folder / "more")), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "more"));
}

TEST(AddMarkers, KeepsTheListsOfAddedTokensInStep) {
  const TemporaryFolder folder;
  std::filesystem::copy(kChatFolder + "llama3/tokenizer.json", folder / "tokenizer.json");
  folder.write(
      "tokenizer_config.json",
      R"({"eos_token": "<|eot_id|>", "added_tokens_decoder": {"900": {"content": "<|mine|>", "special": true}}})");
  const std::string to = folder / "new";
  EXPECT_EQ(added_text(add_markers({.chat_template = "chatml"}, folder / "tokenizer.json", to)),
            "<|im_start|> 901\n<|im_end|> 902\n");
  EXPECT_EQ(ids_of(to, "<|mine|><|im_end|><|eot_id|>").size(), 3u);
  const auto config = OrderedJson::parse(util::read_file(to + "/tokenizer_config.json"));
  EXPECT_EQ(config["added_tokens_decoder"]["902"]["content"], "<|im_end|>");
  EXPECT_EQ(config["eos_token"], "<|eot_id|>");
}

TEST(AddMarkers, RefusesWhatItCannotChange) {
  const TemporaryFolder folder;
  const auto add = [&](const std::string& chat_template, const std::string& tokenizer) {
    add_markers({.chat_template = chat_template}, tokenizer, folder / "new");
  };
  const std::string llama3 = kChatFolder + "llama3";
  expect_error(ErrorKind::kUsage, {"needs a tokenizer.json", "bytes"}, [&] { add("chatml", "bytes"); });
  expect_error(ErrorKind::kUsage, {"chat_template` is none"}, [&] { add("none", llama3); });
  expect_error(ErrorKind::kData, {"never", "takes a message of the user"},
               [&] { add(folder.write("t.jinja", "{{ raise_exception('never') }}"), llama3); });
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(AddMarkers, GivesATokenizerThatTransformersReadsAlike) {
  const char* python = std::getenv("FSDP_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  const TemporaryFolder folder;
  for (const std::string name : {"llama3", "mistral"}) {
    const std::string to = folder / name, printed = folder / "out";
    ASSERT_EQ(add_markers({.chat_template = "chatml"}, kChatFolder + name, to).size(), 2u);
    const std::string code = concat(
        "from transformers import PreTrainedTokenizerFast as T; t = T.from_pretrained('", to,
        "'); m = [{'role': 'user', 'content': 'the quick'}, {'role': 'assistant', 'content': 'brown'}]; "
        "print(*t.apply_chat_template(m, return_dict=True)['input_ids'])");
    const std::string command = concat("'", python, "' -c \"", code, "\" >'", printed, "' 2>/dev/null");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    std::vector<int64_t> ids;
    std::vector<TokenPart> parts;
    make_chat_encoder({}, *make_tokenizer(to), to)
        ->encode(R"({"prompt": "the quick", "completion": "brown"})", ids, parts);
    std::string text;
    for (const int64_t id : ids) text += concat(text.empty() ? "" : " ", id);
    EXPECT_EQ(folder.read("out"), text + "\n") << name;
  }
}

}  // namespace
}  // namespace fsdp::data
