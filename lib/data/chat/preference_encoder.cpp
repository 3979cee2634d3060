#include "data/chat/preference_encoder.h"

#include <algorithm>

#include "data/chat/chat_source.h"
#include "data/chat/conversation_encoder.h"
#include "data/chat/preference_rows.h"

namespace fsdp::data {
namespace {

TokenPart part_of(bool preferred) { return preferred ? TokenPart::kLastTurn : TokenPart::kAssistant; }

/// Throws RowError if both answers of a pair have the same tokens, as answers that differ only in white space
/// which the template removes. `begins` are the beginnings of the answers' documents in `ids`.
void refuse_equal_answers(const std::vector<int64_t>& ids, const std::vector<int64_t>& begins) {
  if (begins.size() == 2 &&
      std::equal(ids.begin() + begins[0], ids.begin() + begins[1], ids.begin() + begins[1], ids.end())) {
    throw RowError("has chosen and rejected answers of the same tokens");
  }
}

class PreferenceEncoder final : public RowEncoder {
 public:
  PreferenceEncoder(const ChatOptions& options, const Tokenizer& tokenizer, const std::string& tokenizer_name)
      : conversations_(options, tokenizer, tokenizer_name) {}

  std::vector<std::string> columns() const override { return preference_columns(); }

  std::string_view encode(std::string_view text, std::vector<int64_t>& ids,
                          std::vector<TokenPart>& parts) const override {
    const PreferenceRow row = parse_preference_row(text);
    std::vector<int64_t> begins;
    for (const RatedConversation& answer : row.answers) {
      begins.push_back(static_cast<int64_t>(ids.size()));
      const TokenPart part = part_of(answer.preferred);
      conversations_.append(answer.conversation, {.last = part, .earlier = part}, ids, parts);
    }
    refuse_equal_answers(ids, begins);
    return row.form;
  }

 private:
  ConversationEncoder conversations_;
};

class PlainPreferenceEncoder final : public RowEncoder {
 public:
  PlainPreferenceEncoder(const ChatOptions& options, const Tokenizer& tokenizer)
      : completions_(options, tokenizer) {}

  std::vector<std::string> columns() const override { return preference_columns(); }

  std::string_view encode(std::string_view text, std::vector<int64_t>& ids,
                          std::vector<TokenPart>& parts) const override {
    const PlainPreferenceRow row = parse_plain_preference_row(text);
    std::vector<int64_t> begins;
    for (const RatedCompletion& answer : row.answers) {
      begins.push_back(static_cast<int64_t>(ids.size()));
      completions_.append(row.prompt, answer.text, part_of(answer.preferred), ids, parts);
    }
    refuse_equal_answers(ids, begins);
    return row.form;
  }

 private:
  CompletionEncoder completions_;
};

}  // namespace

std::unique_ptr<RowEncoder> make_preference_encoder(const ChatOptions& options, const Tokenizer& tokenizer,
                                                    const std::string& tokenizer_name) {
  if (options.chat_template == kNoChatTemplate)
    return std::make_unique<PlainPreferenceEncoder>(options, tokenizer);
  return std::make_unique<PreferenceEncoder>(options, tokenizer, tokenizer_name);
}

}  // namespace fsdp::data
