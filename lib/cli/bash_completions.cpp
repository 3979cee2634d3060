#include "cli/completions.h"
#include "cli/shell_cases.h"
#include "util/text.h"

namespace fsdp::cli {
namespace {

// Needs bash 4.3 and nothing else; bash-completion, where it is loaded, completes the program behind "--".
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

std::string words_of(const std::vector<Choice>& choices) {
  std::vector<std::string> words;
  for (const Choice& choice : choices) words.push_back(choice.word);
  return util::join(words, " ");
}

std::string bash_cases(const std::vector<Place>& places) {
  std::vector<std::string> lines;
  for (const Place& place : places) {
    lines.push_back("      " + place.pattern + ") choices=\"" + words_of(place.choices) + "\"" +
                    (place.files ? " files=1" : "") + " ;;");
  }
  return util::join(lines, "\n");
}

}  // namespace

std::string bash_completions(const Outline& outline, const Page& page) {
  const ShellCases cases = shell_cases(outline, page);
  std::vector<std::string> words, word_values;
  for (const Word& word : page.words) {
    words.push_back(word.name + "=");
    if (word.values.empty()) continue;
    word_values.push_back("        " + word.name + ") choices=\"" + util::join(word.values, " ") + "\" ;;");
  }
  std::map<std::string, std::string> values = common_values(cases, page, bash_cases);
  for (const std::string& place : cases.worded)
    values["positionals"] += "\n      " + place + ") choices=%words ;;";
  values["runs"] = page.runs_program ? kBashRunsProgram : "";
  values["words"] = util::join(words, "\n");
  values["word_values"] = util::join(word_values, "\n");
  return filled(kBashScript, values);
}

}  // namespace fsdp::cli
