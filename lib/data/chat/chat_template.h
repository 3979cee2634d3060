#pragma once

// Chat templates, which convert messages to the text that a model sees, and mark the assistant's part of it.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/chat/chat_process.h"
#include "data/chat/chat_turns.h"

namespace fsdp::data {

/// A template and the variables that it may use besides messages.
struct ChatTemplateSource {
  std::string text;
  std::string name;                               ///< file or preset of the template, for messages
  OrderedJson variables = OrderedJson::object();  ///< variables such as bos_token
};

/// A template, which runs in processes of its own (chat_process.h), since it may be untrusted. Thread-safe.
class ChatTemplate {
 public:
  /// Starts `processes` processes, which is the number of conversations rendered at a time. Throws
  /// Error(kData), with the template and the position in it, for a template that cannot be used.
  explicit ChatTemplate(ChatTemplateSource source, int processes = 1, const ProcessLimits& limits = {});
  ~ChatTemplate();

  struct Rendered {
    std::string text;
    /// The assistant's turns. In templates with {% generation %} blocks they are the output of the blocks, as
    /// in transformers' apply_chat_template(return_assistant_tokens_mask=True), otherwise
    /// find_assistant_turns(). Empty with a generation prompt.
    std::vector<AssistantTurn> turns;
    /// Messages whose tool_calls the template does not write: it writes the same text without them.
    std::vector<int64_t> dropped_calls;
  };
  /// Renders `messages`, a list of objects, and `tools`, a list or null, with the variables of transformers.
  /// Throws TemplateError, whose text begins with the template's name.
  Rendered render(const OrderedJson& messages, const OrderedJson& tools = nullptr,
                  bool add_generation_prompt = false) const;

  const std::string& name() const { return source_.name; }

 private:
  class Borrowed;
  std::unique_ptr<ChatProcess> start() const;
  std::string answer_of(const std::string& request) const;
  OrderedJson checked_answer(const OrderedJson& request) const;

  ChatTemplateSource source_;
  ProcessLimits limits_;
  mutable std::mutex mutex_;
  mutable std::condition_variable given_back_;
  /// Processes that no request uses; null: one that has ended.
  mutable std::vector<std::unique_ptr<ChatProcess>> idle_;
};

}  // namespace fsdp::data
