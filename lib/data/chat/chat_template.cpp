#include "data/chat/chat_template.h"

#include <new>
#include <optional>
#include <utility>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

/// The work of the process, which also parses the template.
class Renderer {
 public:
  explicit Renderer(const ChatTemplateSource& source) : source_(source) {}

  std::string answer(const std::string& request) {
    OrderedJson answer;
    try {
      answer = render(OrderedJson::from_cbor(request));
    } catch (const TemplateError& error) {
      // The engine replaces every exception by one of its own.
      if (std::string_view(error.what()).find("std::bad_alloc") != std::string_view::npos)
        throw std::bad_alloc();
      answer["error"] = error.what();
    }
    return answer.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

 private:
  OrderedJson render(const OrderedJson& request) {
    if (!template_) template_.emplace(source_.text);
    if (!request.contains("messages")) return OrderedJson::object();
    const OrderedJson& messages = request["messages"];
    OrderedJson variables = {{"tools", request["tools"]}, {"documents", nullptr}};
    variables.update(source_.variables);
    const auto rendered = [&](const OrderedJson& some, bool add_generation_prompt) {
      variables["messages"] = some;
      variables["add_generation_prompt"] = add_generation_prompt;
      return template_->render(variables);
    };
    const bool prompts = request["add_generation_prompt"].get<bool>();
    JinjaTemplate::Output output = rendered(messages, prompts);
    std::vector<AssistantTurn> turns;
    if (template_->marks_generations()) {
      turns = turns_of(output.generations, messages);
    } else if (!prompts) {
      turns = find_assistant_turns(messages, output.text, [&](const OrderedJson& some, bool with_prompt) {
        return rendered(some, with_prompt).text;
      });
    }
    OrderedJson dropped = OrderedJson::array();
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].contains("tool_calls") || messages[i]["tool_calls"].empty()) continue;
      OrderedJson without = messages;
      without[i].erase("tool_calls");
      if (writes_same(rendered, without, prompts, output.text)) dropped.push_back(i);
    }
    OrderedJson spans = OrderedJson::array();
    for (const AssistantTurn& turn : turns) spans.push_back({turn.span.begin, turn.span.end, turn.message});
    return {{"text", std::move(output.text)}, {"turns", std::move(spans)}, {"dropped", std::move(dropped)}};
  }

  /// Whether the template writes that text for these messages. False if it refuses them.
  template <typename Render>
  static bool writes_same(const Render& rendered, const OrderedJson& messages, bool prompts,
                          const std::string& text) {
    try {
      return rendered(messages, prompts).text == text;
    } catch (const TemplateError&) {
      return false;
    }
  }

  /// Pairs turns with messages: in most templates each assistant's message has one block.
  static std::vector<AssistantTurn> turns_of(const std::vector<TextSpan>& generations,
                                             const OrderedJson& messages) {
    std::vector<int64_t> assistant;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].value("role", "") == "assistant") assistant.push_back(static_cast<int64_t>(i));
    }
    std::vector<AssistantTurn> turns;
    for (size_t i = 0; i < generations.size(); ++i) {
      turns.push_back({generations[i], assistant.size() == generations.size() ? assistant[i] : -1});
    }
    return turns;
  }

  const ChatTemplateSource& source_;
  std::optional<JinjaTemplate> template_;
};

}  // namespace

/// A process borrowed for one request. The constructor waits until one is free.
class ChatTemplate::Borrowed {
 public:
  explicit Borrowed(const ChatTemplate& owner) : owner_(owner) {
    std::unique_lock lock(owner_.mutex_);
    owner_.given_back_.wait(lock, [&] { return !owner_.idle_.empty(); });
    process_ = std::move(owner_.idle_.back());
    owner_.idle_.pop_back();
  }
  ~Borrowed() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(process_));
    owner_.given_back_.notify_one();
  }
  std::unique_ptr<ChatProcess>& process() { return process_; }

 private:
  const ChatTemplate& owner_;
  std::unique_ptr<ChatProcess> process_;
};

ChatTemplate::ChatTemplate(ChatTemplateSource source, int processes, const ProcessLimits& limits)
    : source_(std::move(source)), limits_(limits) {
  // All processes start at once, while there are no threads that could hold a lock when a process is forked.
  for (int i = 0; i < processes; ++i) idle_.push_back(start());
  try {
    checked_answer(OrderedJson::object());
  } catch (const TemplateError& error) {
    fail(ErrorKind::kData, error.what(), "; correct the template or choose another");
  }
}

ChatTemplate::~ChatTemplate() = default;

std::unique_ptr<ChatProcess> ChatTemplate::start() const {
  const auto renderer = std::make_shared<Renderer>(source_);
  return std::make_unique<ChatProcess>(
      [renderer](const std::string& request) { return renderer->answer(request); }, limits_);
}

std::string ChatTemplate::answer_of(const std::string& request) const {
  Borrowed borrowed(*this);
  std::unique_ptr<ChatProcess>& process = borrowed.process();
  if (!process) process = start();
  try {
    return process->call(request);
  } catch (const ProcessEnded&) {
    process.reset();
    throw;
  }
}

OrderedJson ChatTemplate::checked_answer(const OrderedJson& request) const {
  OrderedJson answer;
  try {
    // CBOR, since JSON has no large integers.
    const std::vector<uint8_t> bytes = OrderedJson::to_cbor(request);
    answer = OrderedJson::parse(answer_of({bytes.begin(), bytes.end()}));
  } catch (const ProcessEnded& ended) {
    throw TemplateError(concat("the chat template ", source_.name, " ", ended.what()));
  }
  if (answer.contains("error")) {
    throw TemplateError(
        concat("the chat template ", source_.name, ", ", answer["error"].get_ref<const std::string&>()));
  }
  return answer;
}

ChatTemplate::Rendered ChatTemplate::render(const OrderedJson& messages, const OrderedJson& tools,
                                            bool add_generation_prompt) const {
  OrderedJson answer = checked_answer(
      {{"messages", messages}, {"tools", tools}, {"add_generation_prompt", add_generation_prompt}});
  Rendered rendered{
      .text = std::move(answer["text"].get_ref<std::string&>()), .turns = {}, .dropped_calls = {}};
  answer["dropped"].get_to(rendered.dropped_calls);
  for (const OrderedJson& turn : answer["turns"]) {
    rendered.turns.push_back({{turn[0].get<size_t>(), turn[1].get<size_t>()}, turn[2].get<int64_t>()});
  }
  return rendered;
}

}  // namespace fsdp::data
