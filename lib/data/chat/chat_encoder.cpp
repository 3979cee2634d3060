#include "data/chat/chat_encoder.h"

#include "data/chat/chat_rows.h"
#include "data/chat/chat_source.h"
#include "data/chat/conversation_encoder.h"

namespace fsdp::data {
namespace {

class ChatEncoder final : public RowEncoder {
 public:
  ChatEncoder(const ChatOptions& options, const Tokenizer& tokenizer, const std::string& tokenizer_name)
      : conversations_(options, tokenizer, tokenizer_name) {}

  std::vector<std::string> columns() const override { return chat_columns(); }

  std::string_view encode(std::string_view text, std::vector<int64_t>& ids,
                          std::vector<TokenPart>& parts) const override {
    const ChatRow row = parse_chat_row(text);
    conversations_.append(row, {}, ids, parts);
    return row.form;
  }

 private:
  ConversationEncoder conversations_;
};

class PlainEncoder final : public RowEncoder {
 public:
  PlainEncoder(const ChatOptions& options, const Tokenizer& tokenizer) : completions_(options, tokenizer) {}

  std::vector<std::string> columns() const override { return {"prompt", "completion"}; }

  std::string_view encode(std::string_view text, std::vector<int64_t>& ids,
                          std::vector<TokenPart>& parts) const override {
    const PlainRow row = parse_plain_row(text);
    completions_.append(row.prompt, row.completion, TokenPart::kLastTurn, ids, parts);
    return row.form;
  }

 private:
  CompletionEncoder completions_;
};

}  // namespace

std::unique_ptr<RowEncoder> make_chat_encoder(const ChatOptions& options, const Tokenizer& tokenizer,
                                              const std::string& tokenizer_name) {
  if (options.chat_template == kNoChatTemplate) return std::make_unique<PlainEncoder>(options, tokenizer);
  return std::make_unique<ChatEncoder>(options, tokenizer, tokenizer_name);
}

}  // namespace fsdp::data
