#include "cli/shell_cases.h"

#include <algorithm>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::cli {
namespace {

std::vector<Choice> plain(const std::vector<std::string>& words) {
  std::vector<Choice> choices;
  for (const std::string& word : words) choices.push_back({word, ""});
  return choices;
}

/// Where `outline` is the program, `command` is empty.
void add(ShellCases& cases, const Outline& outline, const std::string& command, const Page& page) {
  Place flags{.pattern = command.empty() ? "''" : command, .choices = {}, .files = false};
  for (const Flag& flag : outline.flags) {
    for (const std::string& name : flag.names) {
      flags.choices.push_back({name, short_meaning(flag.meaning)});
      if (!flag.takes_value) continue;
      cases.value_flags.push_back(command + ":" + name);
      if (!flag.values.empty()) {
        cases.flag_values.push_back({command + ":" + name, plain(flag.values), false});
      }
    }
  }
  cases.flags.push_back(flags);
  if (command.empty()) {
    Place first{.pattern = ":0", .choices = {}, .files = !outline.positionals.empty()};
    for (const Outline& sub : outline.commands) {
      first.choices.push_back({sub.name, short_meaning(sub.meaning)});
    }
    first.choices.push_back({"completions", "print a script that completes " + page.name});
    first.choices.push_back({"man-page", "print the man page"});
    cases.positionals.push_back(first);
    cases.positionals.push_back({"completions:0", plain({"bash", "zsh", "fish"}), false});
    cases.positionals.push_back({"completions:*", {}, false});
    cases.positionals.push_back({"man-page:*", {}, false});
  }
  for (size_t i = 0; i < outline.positionals.size(); ++i) {
    const Positional& positional = outline.positionals[i];
    const std::string place = command + ":" + (positional.repeats ? "*" : std::to_string(i));
    if (positional.name == "overrides") {
      cases.worded.push_back(place);
    } else if (!positional.values.empty()) {
      cases.positionals.push_back({place, plain(positional.values), false});
    }
  }
}

}  // namespace

ShellCases shell_cases(const Outline& outline, const Page& page) {
  ShellCases cases;
  add(cases, outline, "", page);
  for (const Outline& command : outline.commands) {
    cases.commands.push_back(command.name);
    add(cases, command, command.name, page);
  }
  cases.commands.insert(cases.commands.end(), {"completions", "man-page"});
  return cases;
}

std::map<std::string, std::string> common_values(const ShellCases& cases, const Page& page,
                                                 std::string (*cases_of)(const std::vector<Place>&)) {
  std::vector<std::string> commands;
  for (const std::string& command : cases.commands) commands.push_back(":" + command);
  return {{"program", page.name},
          {"function", function_name(page.name)},
          {"value_flags", cases.value_flags.empty() ? ":" : util::join(cases.value_flags, "|")},
          {"commands", util::join(commands, "|")},
          {"flag_values", cases_of(cases.flag_values)},
          {"flags", cases_of(cases.flags)},
          {"positionals", cases_of(cases.positionals)}};
}

std::string short_meaning(const std::string& meaning) {
  constexpr size_t kLongest = 100;
  std::string text = meaning.substr(0, meaning.find_first_of(":;\n"));
  if (text.size() > kLongest) text = text.substr(0, text.rfind(' ', kLongest));
  return text;
}

std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return quoted + "'";
}

std::string function_name(const std::string& program) {
  std::string name = "_" + program;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string filled(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string result;
  while (true) {
    const size_t begin = text.find('@');
    const size_t end = begin == std::string_view::npos ? begin : text.find('@', begin + 1);
    if (end == std::string_view::npos) return result.append(text);
    const auto found = values.find(std::string(text.substr(begin + 1, end - begin - 1)));
    if (found == values.end()) {  // an @ of the shell's own
      result.append(text.substr(0, end));
      text.remove_prefix(end);
      continue;
    }
    result.append(text.substr(0, begin)).append(found->second);
    text.remove_prefix(end + 1);
  }
}

}  // namespace fsdp::cli
