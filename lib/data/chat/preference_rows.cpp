#include "data/chat/preference_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/util/error.h"
#include "data/chat/chat_python.h"
#include "data/chat/row_fields.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {
namespace {

/// Place of a row's prompt.
enum class PromptPlace {
  kField,          ///< a text or a list of messages in the field of the prompt
  kInstruction,    ///< Alpaca's instruction, input and history
  kBeforeLast,     ///< all messages of a list but the last, which is the answer
  kCommonStart,    ///< the messages that chosen and rejected begin with
  kCommonLetters,  ///< the text that chosen and rejected begin with
};

struct PreferenceForm {
  std::string_view name;  ///< name and fields, for messages
  PromptPlace place;
  std::string_view prompt;                  ///< field of the prompt; "": none
  std::array<std::string_view, 2> answers;  ///< fields of chosen and rejected; one field: that of an answer
                                            ///< with a label

  bool is_pair() const { return !answers[1].empty(); }
};

using enum PromptPlace;

/// All forms, the first that fits first. Sets with conversations in chosen and rejected often have the prompt
/// as a text too, and the chosen conversation as messages.
constexpr std::array<PreferenceForm, 15> kPreferenceForms = {{
    {"pairs of conversations (chosen, rejected)", kCommonStart, "", {"chosen", "rejected"}},
    {"pairs of answers (prompt, chosen, rejected)", kField, "prompt", {"chosen", "rejected"}},
    {"pairs of answers (messages, chosen, rejected)", kField, "messages", {"chosen", "rejected"}},
    {"pairs of answers (conversations, chosen, rejected)", kField, "conversations", {"chosen", "rejected"}},
    {"pairs of answers (question, chosen, rejected)", kField, "question", {"chosen", "rejected"}},
    {"Alpaca's pairs (instruction, chosen, rejected)", kInstruction, "instruction", {"chosen", "rejected"}},
    {"Alpaca's pairs (instruction, chosen_response, rejected_response)",
     kInstruction,
     "instruction",
     {"chosen_response", "rejected_response"}},
    {"pairs of answers (input, chosen, rejected)", kField, "input", {"chosen", "rejected"}},
    {"pairs of texts (chosen, rejected)", kCommonLetters, "", {"chosen", "rejected"}},
    {"labelled answers (prompt, completion, label)", kField, "prompt", {"completion", ""}},
    {"labelled answers (question, completion, label)", kField, "question", {"completion", ""}},
    {"labelled answers (instruction, completion, label)", kInstruction, "instruction", {"completion", ""}},
    {"labelled answers (instruction, output, label)", kInstruction, "instruction", {"output", ""}},
    {"labelled conversations (messages, label)", kBeforeLast, "messages", {"messages", ""}},
    {"labelled conversations (conversations, label)", kBeforeLast, "conversations", {"conversations", ""}},
}};
/// Names of the label, of TRL and LLaMA-Factory.
constexpr std::array<const char*, 2> kLabels = {"label", "kto_tag"};
/// Fields that rows may have besides those of kPreferenceForms and kLabels.
constexpr std::array<const char*, 4> kMorePreferenceFields = {"input", "system", "history", "tools"};

const OrderedJson& field_value(const OrderedJson& row, std::string_view field) {
  return row[std::string(field)];
}

/// Whether two messages are equal, in whatever order their members are.
bool are_equal(const OrderedJson& a, const OrderedJson& b) { return nlohmann::json(a) == nlohmann::json(b); }

/// Returns the name of the row's label; null if it has none.
const char* label_in(const OrderedJson& row) {
  const auto* found = std::ranges::find_if(kLabels, [&](const char* each) { return has_field(row, each); });
  return found == kLabels.end() ? nullptr : *found;
}

bool label_of(const OrderedJson& row) {
  const char* const name = label_in(row);
  const OrderedJson& value = row[name];
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_number() || (value != 0 && value != 1))
    throw RowError(concat("has the ", name, " ", value.dump(), ", but expected true or false"));
  return value == 1;
}

/// Whether chosen and rejected are conversations that contain the prompt, rather than lists of answers.
bool has_conversations(const OrderedJson& row) {
  const OrderedJson &chosen = row["chosen"], &rejected = row["rejected"];
  if (!chosen.is_array() || (has_field(row, "prompt") && row["prompt"].is_array())) return false;
  const bool begin_alike = rejected.is_array() && !chosen.empty() && !rejected.empty() &&
                           are_equal(chosen.front(), rejected.front());
  return begin_alike || std::ranges::none_of(kPreferenceForms, [&](const PreferenceForm& each) {
           return !each.prompt.empty() && has_field(row, each.prompt);
         });
}

bool fits_preference(const PreferenceForm& form, const OrderedJson& row) {
  if (!form.prompt.empty() && !has_field(row, form.prompt)) return false;
  for (const std::string_view field : form.answers) {
    if (!field.empty() && !has_field(row, field)) return false;
  }
  if (!form.is_pair() && label_in(row) == nullptr) return false;
  switch (form.place) {
    case kCommonStart:
      return has_conversations(row);
    case kCommonLetters:
      return row["chosen"].is_string();
    case kBeforeLast:
      return row[std::string(form.prompt)].is_array();
    case kField:
    case kInstruction:
      return true;
  }
  return false;
}

const PreferenceForm& preference_form_of(const OrderedJson& row) {
  const auto* form = std::ranges::find_if(
      kPreferenceForms, [&](const PreferenceForm& each) { return fits_preference(each, row); });
  if (form != kPreferenceForms.end()) return *form;
  if (has_field(row, "chosen") != has_field(row, "rejected")) {
    const bool has_chosen = has_field(row, "chosen");
    throw RowError(concat("has ", has_chosen ? "chosen" : "rejected", " without ",
                          has_chosen ? "rejected" : "chosen", ", but a pair must have both"));
  }
  std::string known;
  for (const PreferenceForm& each : kPreferenceForms) known += concat(known.empty() ? "" : ", ", each.name);
  throw RowError(
      concat("has ", names_of_fields(row), ", but must have those of a form of preferences: ", known));
}

/// A row's prompt and answers, as they are in the row.
struct PreferenceFields {
  OrderedJson prompt;
  std::vector<OrderedJson> answers;
};

OrderedJson elements(const OrderedJson& list, size_t begin, size_t end) {
  OrderedJson result = OrderedJson::array();
  for (size_t i = begin; i < end; ++i) result.push_back(list[i]);
  return result;
}

/// Returns a list of messages that may also be given as its only message.
OrderedJson listed(const OrderedJson& answer) {
  return answer.is_object() ? OrderedJson::array({answer}) : answer;
}

/// Divides two conversations behind the messages that they begin with. The last message of the shorter one is
/// always an answer.
PreferenceFields divided(const OrderedJson& chosen, const OrderedJson& rejected) {
  if (!rejected.is_array() || chosen.empty() || rejected.empty()) {
    throw RowError(concat("has chosen that is ", chosen.empty() ? "an empty list" : "a list of messages",
                          " and rejected that is ",
                          !rejected.is_array() ? concat("a ", rejected.type_name())
                          : rejected.empty()   ? "an empty list"
                                               : "a list of messages",
                          ", but both must be lists of messages"));
  }
  if (are_equal(chosen, rejected)) throw RowError("has equal answers in chosen and rejected");
  const size_t most = std::min(chosen.size(), rejected.size()) - 1;
  size_t common = 0;
  while (common < most && are_equal(chosen[common], rejected[common])) ++common;
  if (common == 0) {
    throw RowError(
        "has chosen and rejected that do not begin with the same message, but without a list of messages in "
        "prompt both must begin with the prompt");
  }
  return {.prompt = elements(chosen, 0, common),
          .answers = {elements(chosen, common, chosen.size()), elements(rejected, common, rejected.size())}};
}

/// Returns the number of bytes that are the prompt of two texts, by the rules of TRL's extract_prompt(): the
/// characters that both begin with, without a blank before the first that differs, and without the last
/// character of the shorter text. Requires: neither is empty.
size_t common_start(std::string_view chosen, std::string_view rejected) {
  const std::vector<std::string_view> a = python_characters(chosen), b = python_characters(rejected);
  const size_t most = std::min(a.size(), b.size()) - 1;
  size_t common = 0;
  while (common < most && a[common] == b[common]) ++common;
  if (a[common] != b[common] && common > 0 && a[common - 1] == " ") --common;
  return static_cast<size_t>(a[common].data() - chosen.data());
}

PreferenceFields fields_of(const OrderedJson& row, const PreferenceForm& form) {
  const OrderedJson& first = field_value(row, form.answers[0]);
  if (form.place == kCommonStart) return divided(first, field_value(row, form.answers[1]));
  if (form.place == kBeforeLast) {
    if (first.size() < 2)
      throw RowError(concat("has ", form.prompt, " without a prompt before the last message"));
    return {.prompt = elements(first, 0, first.size() - 1),
            .answers = {elements(first, first.size() - 1, first.size())}};
  }
  PreferenceFields fields{.prompt = field_value(row, form.prompt), .answers = {listed(first)}};
  if (form.is_pair()) fields.answers.push_back(listed(field_value(row, form.answers[1])));
  return fields;
}

ChatRow prompt_of(const OrderedJson& row, const PreferenceForm& form, const OrderedJson& prompt) {
  ChatRow result;
  if (form.place == kInstruction) {
    add_instruction(row, /*learnt=*/false, result);
  } else {
    add_system_and_messages(row, prompt, std::string(form.prompt), "user", /*learnt=*/false, result);
  }
  if (result.messages.back().value("content", OrderedJson()) == "" && !prompt.is_array())
    throw RowError("has an empty prompt");
  return result;
}

bool says_nothing(const OrderedJson& message) {
  return message.value("content", OrderedJson("")) == "" && !message.contains("tool_calls") &&
         !message.contains("reasoning_content");
}

/// Appends an answer from the field `name` to its prompt.
void add_answer(const OrderedJson& answer, const std::string& name, ChatRow& to) {
  const size_t begin = to.messages.size();
  add_messages(answer, name, "assistant", /*learnt=*/true, to);
  const OrderedJson& first = to.messages[begin];
  if (first["role"] != "assistant") {
    throw RowError(concat("has ", name, " that answers with message ", begin + 1, " of the conversation (",
                          first["role"].get<std::string>(), "), but expected one of the assistant"));
  }
  bool learns = false, is_empty = true;
  for (size_t i = begin; i < to.messages.size(); ++i) {
    learns |= to.learnt[i];
    is_empty &= !to.learnt[i] || says_nothing(to.messages[i]);
  }
  if (!learns) throw RowError(concat("has ", name, " without a message of the assistant to learn from"));
  if (is_empty) throw RowError(concat("has ", name, " that is an empty answer"));
}

}  // namespace

std::vector<std::string> preference_columns() {
  std::vector<std::string> columns(kMorePreferenceFields.begin(), kMorePreferenceFields.end());
  columns.insert(columns.end(), kLabels.begin(), kLabels.end());
  for (const PreferenceForm& form : kPreferenceForms) {
    for (const std::string_view field : {form.prompt, form.answers[0], form.answers[1]}) {
      if (!field.empty() && std::ranges::find(columns, field) == columns.end()) columns.emplace_back(field);
    }
  }
  return columns;
}

PreferenceRow parse_preference_row(std::string_view text) {
  const OrderedJson object = parse_row_object(text);
  const PreferenceForm& form = preference_form_of(object);
  if (form.place == kCommonLetters) {
    throw RowError(
        "has the texts chosen and rejected without a prompt, which a chat template needs; add a prompt, or "
        "choose the `chat_template` none");
  }
  const PreferenceFields fields = fields_of(object, form);
  ChatRow prompt = prompt_of(object, form, fields.prompt);
  prompt.form = form.name;
  prompt.tools = tools_of(object);
  PreferenceRow row{.form = form.name, .answers = {}};
  for (size_t i = 0; i < fields.answers.size(); ++i) {
    const bool preferred = form.is_pair() ? i == 0 : label_of(object);
    row.answers.push_back({.conversation = prompt, .preferred = preferred});
    add_answer(fields.answers[i], std::string(form.answers[i]), row.answers.back().conversation);
  }
  if (form.is_pair() &&
      are_equal(row.answers[0].conversation.messages, row.answers[1].conversation.messages)) {
    throw RowError(concat("has equal answers in ", form.answers[0], " and ", form.answers[1]));
  }
  return row;
}

PlainPreferenceRow parse_plain_preference_row(std::string_view text) {
  const OrderedJson object = parse_row_object(text);
  const PreferenceForm& form = preference_form_of(object);
  PlainPreferenceRow row{.form = form.name, .prompt = {}, .answers = {}};
  const auto text_of = [&](std::string_view field) {
    const OrderedJson& value = field_value(object, field);
    if (!value.is_string()) {
      throw RowError(concat("has ", field, " that is a ", value.type_name(),
                            ", but without a chat template prompts and answers must be texts"));
    }
    return value.get<std::string>();
  };
  for (size_t i = 0; i < (form.is_pair() ? 2 : 1); ++i) {
    row.answers.push_back(
        {.text = text_of(form.answers[i]), .preferred = form.is_pair() ? i == 0 : label_of(object)});
    if (row.answers.back().text.empty())
      throw RowError(concat("has ", form.answers[i], " that is an empty answer"));
  }
  if (form.is_pair() && row.answers[0].text == row.answers[1].text)
    throw RowError(concat("has equal answers in ", form.answers[0], " and ", form.answers[1]));
  if (form.place == kCommonLetters) {
    const size_t common = common_start(row.answers[0].text, row.answers[1].text);
    if (common == 0)
      throw RowError("has chosen and rejected that do not begin alike, but must begin with the prompt");
    row.prompt = row.answers[0].text.substr(0, common);
    for (RatedCompletion& answer : row.answers) answer.text.erase(0, common);
    return row;
  }
  if (form.prompt != "prompt") {
    throw RowError(concat("is in the form of ", form.name,
                          ", which needs a chat template, but `chat_template` is none"));
  }
  row.prompt = text_of(form.prompt);
  if (row.prompt.empty()) throw RowError("has an empty prompt");
  return row;
}

}  // namespace fsdp::data
