#include <algorithm>
#include <map>
#include <string_view>

#include "cli/outline.h"
#include "util/text.h"

namespace fsdp::cli {
namespace {

using Strings = std::vector<std::string>;

// The scripts of bash and zsh walk the words before the cursor in the same way, and branch by
// "COMMAND:--flag" and "COMMAND:POSITION"; COMMAND is empty before a command.

// Needs bash 4.3. bash-completion, if it is loaded, completes the program after "--".
constexpr const char* kBashScript =
    R"(# Completion of @program@ for bash: source <(@program@ completions bash)
@function@() {
  # To bash "=" is a word of its own; here section.key=value is one.
  local words=() word i joins=0 offset=0
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == = && ${#words[@]} -gt 0 ]]; then
      words[-1]+="="
      joins=1
    elif ((joins)); then
      words[-1]+=$word
      joins=0
    else
      words+=("$word")
    fi
    if [[ $word == -- && $i -lt $COMP_CWORD && $offset -eq 0 ]]; then offset=$((i + 1)); fi
  done
@runs@
  local current=${words[-1]-} command="" position=0 is_value=0 previous=""
  for word in "${words[@]:0:${#words[@]}-1}"; do
    if ((is_value)); then
      is_value=0
      continue
    fi
    previous=$word
    case $command:$word in
      @value_flags@) is_value=1 ;;
      *:-*) ;;
      @commands@) if ((position == 0)); then command=$word; else ((++position)); fi ;;
      *) ((++position)) ;;
    esac
  done

  local choices="" files=0 key=""
  if ((is_value)); then
    case $command:$previous in
@flag_values@
      *) files=1 ;;
    esac
  elif [[ $current == -* ]]; then
    case $command in
@flags@
    esac
  else
    case $command:$position in
@positionals@
      *) files=1 ;;
    esac
  fi

  COMPREPLY=()
  if [[ $choices == %words ]]; then
    if [[ $current == *=* ]]; then
      key=${current%%=*}
      current=${current#*=}
      choices=""
      case $key in
@word_values@
      esac
      # Bash replaces what stands behind "=", if "=" parts words, else all of the word.
      if [[ $COMP_WORDBREAKS == *=* ]]; then key=""; else key+="="; fi
      mapfile -t COMPREPLY < <(compgen -P "$key" -W "$choices" -- "$current")
      return
    fi
    choices="
@words@"
    compopt -o nospace 2>/dev/null
  fi
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
  if ((files)); then
    local names
    mapfile -t names < <(compgen -f -- "$current")
    COMPREPLY+=("${names[@]}")
    compopt -o filenames 2>/dev/null
  fi
}
complete -F @function@ @program@
)";

constexpr const char* kBashRunsProgram = R"(
  if ((offset)); then  # the command line of another program
    if declare -F _command_offset >/dev/null; then _command_offset "$offset"; else COMPREPLY=(); fi
    return
  fi
)";

constexpr const char* kZshScript = R"(#compdef @program@
# Completion of @program@ for zsh: source <(@program@ completions zsh), or as the file _@program@ in a folder of
# $fpath.
@function@() {
  local current=$words[CURRENT] word command="" previous="" key="" files=0 i
  local -i position=0 is_value=0
  local -a choices
  for ((i = 2; i < CURRENT; i++)); do
    word=$words[i]
    if ((is_value)); then
      is_value=0
      continue
    fi
@runs@
    previous=$word
    case $command:$word in
      (@value_flags@) is_value=1 ;;
      (*:-*) ;;
      (@commands@) if ((position == 0)); then command=$word; else ((++position)); fi ;;
      (*) ((++position)) ;;
    esac
  done

  if ((is_value)); then
    case $command:$previous in
@flag_values@
      (*) files=1 ;;
    esac
  elif [[ $current == -* ]]; then
    case $command in
@flags@
    esac
    _describe -o option choices
    return
  else
    case $command:$position in
@positionals@
      (*) files=1 ;;
    esac
  fi

  if [[ $choices[1] == '%words' ]]; then
    if [[ $current == *=* ]]; then
      key=${current%%=*}
      choices=()
      case $key in
@word_values@
      esac
      compset -P '*='
      ((${#choices})) && _describe value choices
    else
      choices=(
@words@
      )
      _describe key choices -S =
    fi
    return
  fi
  ((${#choices})) && _describe choice choices
  ((files)) && _files
}
if [[ $funcstack[1] == @function@ ]]; then @function@ "$@"; else compdef @function@ @program@; fi
)";

constexpr const char* kZshRunsProgram =
    R"(    if [[ $word == -- ]]; then  # the command line of another program
      shift $i words
      ((CURRENT -= i))
      _normal
      return
    fi
)";

/// A word that can be completed.
struct Choice {
  std::string word;
  std::string meaning;
};

std::vector<Choice> without_meanings(const Strings& words) {
  std::vector<Choice> choices;
  for (const std::string& word : words) choices.push_back({word, ""});
  return choices;
}

/// The text up to its first ":" or ";", at most about 100 characters, for a list of choices.
std::string short_meaning(const std::string& meaning) {
  constexpr size_t kLongest = 100;
  std::string text = meaning.substr(0, meaning.find_first_of(":;\n"));
  if (text.size() > kLongest) text = text.substr(0, text.rfind(' ', kLongest));
  return text;
}

/// `text` with each @NAME@ replaced by the value of that name.
std::string filled(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string result;
  while (true) {
    const size_t begin = text.find('@');
    const size_t end = begin == std::string_view::npos ? begin : text.find('@', begin + 1);
    if (end == std::string_view::npos) return result.append(text);
    const auto found = values.find(std::string(text.substr(begin + 1, end - begin - 1)));
    if (found == values.end()) {  // an @ of the shell
      result.append(text.substr(0, end));
      text.remove_prefix(end);
      continue;
    }
    result.append(text.substr(0, begin)).append(found->second);
    text.remove_prefix(end + 1);
  }
}

/// A script for bash or zsh.
class CaseScript {
 public:
  CaseScript(const Outline& outline, const Page& page, bool is_zsh) : page_(page), is_zsh_(is_zsh) {
    add(outline, "");
    for (const Outline& command : outline.commands) {
      commands_.push_back(":" + command.name);
      add(command, command.name);
    }
    commands_.insert(commands_.end(), {":completions", ":man-page"});
    positionals_.insert(positionals_.end(), places_of_words_.begin(), places_of_words_.end());
  }

  std::string text() const {
    Strings words, word_values;
    for (const Word& word : page_.words) {
      words.push_back(is_zsh_ ? "        " + described({word.name, short_meaning(word.meaning)})
                              : word.name + "=");
      if (word.values.empty()) continue;
      word_values.push_back("  " + branch(word.name, util::join(word.values, " ")));
    }
    std::string function = "_" + page_.name;
    std::replace(function.begin(), function.end(), '-', '_');
    const char* runs = is_zsh_ ? kZshRunsProgram : kBashRunsProgram;
    return filled(is_zsh_ ? kZshScript : kBashScript,
                  {{"program", page_.name},
                   {"function", function},
                   {"runs", page_.runs_program ? runs : ""},
                   {"value_flags", value_flags_.empty() ? ":" : util::join(value_flags_, "|")},
                   {"commands", util::join(commands_, "|")},
                   {"flag_values", util::join(flag_values_, "\n")},
                   {"flags", util::join(flags_, "\n")},
                   {"positionals", util::join(positionals_, "\n")},
                   {"words", util::join(words, "\n")},
                   {"word_values", util::join(word_values, "\n")}});
  }

 private:
  /// 'word:meaning' for _describe of zsh.
  static std::string described(const Choice& choice) {
    std::string quoted = "'";
    for (char c : choice.meaning.empty() ? choice.word : choice.word + ":" + choice.meaning) {
      quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
    }
    return quoted + "'";
  }

  std::string branch(const std::string& pattern, const std::string& choices, bool files = false) const {
    const std::string end = std::string(files ? " files=1" : "") + " ;;";
    return is_zsh_ ? "      (" + pattern + ") choices=(" + choices + ")" + end
                   : "      " + pattern + ") choices=\"" + choices + "\"" + end;
  }
  std::string branch(const std::string& pattern, const std::vector<Choice>& choices,
                     bool files = false) const {
    Strings words;
    for (const Choice& choice : choices) words.push_back(is_zsh_ ? described(choice) : choice.word);
    return branch(pattern, util::join(words, " "), files);
  }

  /// `command` is empty for the program.
  void add(const Outline& outline, const std::string& command) {
    std::vector<Choice> flags;
    for (const Flag& flag : outline.flags) {
      for (const std::string& name : flag.names) {
        flags.push_back({name, short_meaning(flag.meaning)});
        if (!flag.takes_value) continue;
        value_flags_.push_back(command + ":" + name);
        if (flag.values.empty()) continue;
        flag_values_.push_back(branch(command + ":" + name, without_meanings(flag.values)));
      }
    }
    flags_.push_back(branch(command.empty() ? "''" : command, flags));
    if (command.empty()) {
      std::vector<Choice> first;
      for (const Outline& sub : outline.commands) first.push_back({sub.name, short_meaning(sub.meaning)});
      first.push_back({"completions", "print a script that completes " + page_.name});
      first.push_back({"man-page", "print the man page"});
      positionals_ = {branch(":0", first, !outline.positionals.empty()),
                      branch("completions:0", without_meanings({"bash", "zsh", "fish"})),
                      branch("completions:*", ""), branch("man-page:*", "")};
    }
    for (size_t i = 0; i < outline.positionals.size(); ++i) {
      const Positional& positional = outline.positionals[i];
      const std::string place = command + ":" + (positional.repeats ? "*" : std::to_string(i));
      if (positional.name == "overrides") {
        places_of_words_.push_back("      " + std::string(is_zsh_ ? "(" : "") + place +
                                   (is_zsh_ ? ") choices=('%words') ;;" : ") choices=%words ;;"));
      } else if (!positional.values.empty()) {
        positionals_.push_back(branch(place, without_meanings(positional.values)));
      }
    }
  }

  const Page& page_;
  bool is_zsh_;
  Strings commands_, value_flags_;                               ///< patterns
  Strings flag_values_, flags_, positionals_, places_of_words_;  ///< branches; the first that matches counts
};

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

class FishScript {
 public:
  explicit FishScript(const Page& page) : page_(page) {
    text_ = "# Completion of " + page.name + " for fish: " + page.name + " completions fish | source\n";
  }

  /// `condition` is a command of fish; `rest` further arguments of `complete`.
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
    // Values only after their key: a list of all of them would hide the keys.
    for (const Word& word : page_.words) {
      line(condition + "; and not string match -q '*=*' -- (commandline -ct)",
           "-f -a " + fish_quoted(word.name + "="), word.meaning);
      if (word.values.empty()) continue;
      Strings words;
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

std::string fish_completions(const Outline& outline, const Page& page) {
  Strings commands = {"completions", "man-page"};
  for (const Outline& command : outline.commands) commands.push_back(command.name);
  FishScript script(page);
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

}  // namespace

std::optional<std::string> completions(const Outline& outline, const Page& page, const std::string& shell) {
  if (shell == "bash" || shell == "zsh") return CaseScript(outline, page, shell == "zsh").text();
  if (shell == "fish") return fish_completions(outline, page);
  return std::nullopt;
}

}  // namespace fsdp::cli
