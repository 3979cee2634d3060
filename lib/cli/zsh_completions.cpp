#include "cli/completions.h"
#include "cli/shell_cases.h"
#include "util/text.h"

namespace fsdp::cli {
namespace {

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

/// 'word:meaning' of _describe.
std::string described(const Choice& choice) {
  return single_quoted(choice.meaning.empty() ? choice.word : choice.word + ":" + choice.meaning);
}

std::string zsh_cases(const std::vector<Place>& places) {
  std::vector<std::string> lines;
  for (const Place& place : places) {
    std::vector<std::string> words;
    for (const Choice& choice : place.choices) words.push_back(described(choice));
    lines.push_back("      (" + place.pattern + ") choices=(" + util::join(words, " ") + ")" +
                    (place.files ? " files=1" : "") + " ;;");
  }
  return util::join(lines, "\n");
}

}  // namespace

std::string zsh_completions(const Outline& outline, const Page& page) {
  const ShellCases cases = shell_cases(outline, page);
  std::vector<std::string> words, word_values;
  for (const Word& word : page.words) {
    words.push_back("        " + described({word.name, short_meaning(word.meaning)}));
    if (word.values.empty()) continue;
    word_values.push_back("        (" + word.name + ") choices=(" + util::join(word.values, " ") + ") ;;");
  }
  std::map<std::string, std::string> values = common_values(cases, page, zsh_cases);
  for (const std::string& place : cases.worded)
    values["positionals"] += "\n      (" + place + ") choices=('%words') ;;";
  values["runs"] = page.runs_program ? kZshRunsProgram : "";
  values["words"] = util::join(words, "\n");
  values["word_values"] = util::join(word_values, "\n");
  return filled(kZshScript, values);
}

}  // namespace fsdp::cli
