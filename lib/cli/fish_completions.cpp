#include <algorithm>

#include "cli/completions.h"
#include "cli/shell_cases.h"
#include "util/text.h"

namespace fsdp::cli {
namespace {

/// In single quotes fish takes a backslash before a quote or a backslash.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

class Script {
 public:
  explicit Script(const Page& page) : page_(page) {
    text_ = "# Completion of " + page.name + " for fish: " + page.name + " completions fish | source\n";
  }

  /// `condition` is a command of fish; `rest` what `complete` takes beside it.
  void line(const std::string& condition, const std::string& rest, const std::string& meaning = "") {
    text_ += "complete -c " + page_.name + " -n " + fish_quoted(condition) + " " + rest;
    if (!meaning.empty()) text_ += " -d " + fish_quoted(short_meaning(meaning));
    text_ += "\n";
  }

  void add_flags(const Outline& outline, const std::string& condition) {
    for (const Flag& flag : outline.flags) {
      std::string rest;
      for (const std::string& name : flag.names) {
        rest += (rest.empty() ? "" : " ");
        rest += name.starts_with("--") ? "-l " + name.substr(2) : "-s " + name.substr(1);
      }
      if (!flag.values.empty()) {
        rest += " -x -a " + fish_quoted(util::join(flag.values, " "));
      } else if (flag.takes_value) {
        rest += " -r";
      }
      line(condition, rest, flag.meaning);
    }
  }

  void add_positionals(const Outline& outline, const std::string& condition) {
    for (const Positional& positional : outline.positionals) {
      if (!positional.values.empty()) {
        line(condition, "-f -a " + fish_quoted(util::join(positional.values, " ")), positional.meaning);
      }
    }
    if (!takes_words(outline)) return;
    // Values of a key only behind it: a list of all of them would hide the keys.
    for (const Word& word : page_.words) {
      line(condition + "; and not string match -q '*=*' -- (commandline -ct)",
           "-f -a " + fish_quoted(word.name + "="), word.meaning);
      if (word.values.empty()) continue;
      std::vector<std::string> words;
      for (const std::string& value : word.values) words.push_back(word.name + "=" + value);
      line(condition + "; and string match -q '" + word.name + "=*' -- (commandline -ct)",
           "-f -a " + fish_quoted(util::join(words, " ")));
    }
  }

  std::string text() const { return text_; }

 private:
  const Page& page_;
  std::string text_;
};

}  // namespace

std::string fish_completions(const Outline& outline, const Page& page) {
  std::vector<std::string> commands = {"completions", "man-page"};
  for (const Outline& command : outline.commands) commands.push_back(command.name);
  Script script(page);
  std::string outside = "not __fish_seen_subcommand_from " + util::join(commands, " ");
  if (page.runs_program) {
    outside += "; and not contains -- -- (commandline -opc)";
    script.line("contains -- -- (commandline -opc)", "-x -a '(__fish_complete_subcommand --commandline)'");
  }
  script.add_flags(outline, outside);
  for (const Outline& command : outline.commands) {
    script.line("__fish_use_subcommand", "-a " + command.name, command.meaning);
  }
  script.line("__fish_use_subcommand", "-a completions", "print a script that completes " + page.name);
  script.line("__fish_use_subcommand", "-a man-page", "print the man page");
  script.line("__fish_seen_subcommand_from completions", "-f -a 'bash zsh fish'");
  script.add_positionals(outline, outside + "; and not __fish_use_subcommand");
  for (const Outline& command : outline.commands) {
    const std::string inside = "__fish_seen_subcommand_from " + command.name;
    script.add_flags(command, inside);
    script.add_positionals(command, inside);
  }
  return script.text();
}

}  // namespace fsdp::cli
