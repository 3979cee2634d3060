#pragma once

// Chat templates: from messages to the text that a model sees, and the assistant's part of it.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/chat/chat_process.h"
#include "data/chat/chat_turns.h"

namespace fsdp::data {

/// A template and what it may use besides messages.
struct ChatTemplateSource {
  std::string text;
  std::string name;  ///< the file that it comes from, or the preset, for messages
  OrderedJson variables = OrderedJson::object();  ///< bos_token and so on
};

/// A template is run in processes of its own (chat_process.h), since those of downloaded models are not trusted.
/// Thread-safe.
class ChatTemplate {
 public:
  /// Throws Error(kData), which names the template and the place in it, for one that cannot be used.
  /// processes: how many conversations are rendered at a time.
  explicit ChatTemplate(ChatTemplateSource source, int processes = 1, const ProcessLimits& limits = {});
  ~ChatTemplate();

  struct Rendered {
    std::string text;
    /// The assistant's turns: what {% generation %} blocks wrote, in templates that have them, as in transformers'
    /// apply_chat_template(return_assistant_tokens_mask=True); else find_assistant_turns(). Empty with a generation
    /// prompt.
    std::vector<AssistantTurn> turns;
    /// Messages whose tool_calls the template does not write: without them it writes the same text.
    std::vector<int64_t> dropped_calls;
  };
  /// messages: a list of objects; tools: a list, or null. The variables are those of transformers. Throws
  /// TemplateError, whose text begins with the template's name.
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
  mutable std::vector<std::unique_ptr<ChatProcess>> idle_;  ///< null: has ended
};

}  // namespace fsdp::data
