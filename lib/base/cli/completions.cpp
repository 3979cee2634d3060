#include "base/cli/shell_files.h"
#include "base/util/error.h"

// A script is a table of possible completions and an awk program that looks up the words of the command line
// in it. It does not run the program itself, which would take long to load libtorch.

namespace fsdp::cli {
namespace {

// The columns of the table are COMMAND, PLACE, WORD, MEANING. PLACE is the position of a positional argument
// ("*": any other position), "-" for options, an option for its values, and a key for the COMMAND "=". The
// WORD "/" stands for files, "=" for the rows of the COMMAND "=". The arguments are the words after the
// program up to the cursor. The output is the rows for the last word, or "--" and the index of the first word
// of another program's command line. All three shells get the awk program in single quotes, so it contains no
// single quote and no double backslash.
constexpr const char* kLookUp = R"(
BEGIN {
  FS = "\t"
  for (i = 1; i < ARGC; i++) {  # to bash, = is a word of its own
    if (n && (ARGV[i] == "=" || ARGV[i - 1] == "=")) words[n] = words[n] ARGV[i]
    else { words[++n] = ARGV[i]; index_of[n] = i }
  }
  ARGC = 1
}
{ rows[NR] = $0; known[$1, $2] = $3; commands[$1] }
END {
  for (i = 1; i < n; i++) {
    if (option != "") option = ""
    else if (words[i] == "--" && ("", "--") in known) { print "--\t" (index_of[i] + 1); exit }
    else if (words[i] ~ /^-/) { if ((command, words[i]) in known) option = words[i] }
    else if (command == "" && position + 0 == 0 && words[i] in commands) command = words[i]
    else position++
  }
  place = option != "" ? option : words[n] ~ /^-/ ? "-" : ((command, position + 0) in known) ? position + 0 : "*"
  if (known[command, place] == "=") {
    command = "="
    place = substr(words[n], 1, index(words[n], "=") - 1)
  }
  for (i = 1; i <= NR; i++) {
    split(rows[i], cell, FS)
    if (cell[1] == command && cell[2] "" == place "" && cell[3] != "") print cell[3] "\t" cell[4]
  }
})";

// This script needs bash 4. Where "=" separates words, bash replaces only the part after it.
constexpr const char* kBash = R"(# Completion of @program@ for bash: source <(@program@ completions bash)
_@program@() {
  local lines files=() word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  mapfile -t lines < <(@rows@ "${COMP_WORDS[@]:1:COMP_CWORD}")
  if [[ ${lines[0]-} == --$'\t'* ]]; then  # bash-completion, if it is loaded, completes another program
    if declare -F _command_offset >/dev/null; then _command_offset "${lines[0]#*$'\t'}"; fi
    return
  fi
  lines=("${lines[@]%%$'\t'*}")
  if [[ ${lines[0]-} == / ]]; then
    lines[0]=
    mapfile -t files < <(compgen -f -- "$word")
    compopt -o filenames 2>/dev/null
  elif [[ $word == = || $before == = ]]; then
    lines=("${lines[@]#*=}") word=${word#=}
  elif [[ ${lines[0]-} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
  mapfile -t COMPREPLY < <(compgen -W "${lines[*]}" -- "$word")
  COMPREPLY+=("${files[@]}")
}
complete -F _@program@ @program@
)";

constexpr const char* kZsh = R"(#compdef @program@
# Completion of @program@ for zsh: source <(@program@ completions zsh), or as the file _@program@ in a folder of $fpath.
_@program@() {
  local line meaning; local -a lines choices ending
  lines=("${(@f)$(@rows@ "${(@)words[2,CURRENT]}")}")
  if [[ $lines[1] == --$'\t'* ]]; then  # the command line of another program
    shift ${lines[1]#*$'\t'} words
    ((CURRENT -= ${lines[1]#*$'\t'})); _normal; return
  fi
  [[ $lines[1] == /* ]] && { _files; shift lines }
  [[ $lines[1] == *=$'\t'* ]] && ending=(-S '')
  for line in $lines; do
    meaning=${line#*$'\t'}
    choices+=("${${line%%$'\t'*}//:/\\:}${meaning:+:$meaning}")
  done
  ((${#choices})) && _describe choice choices "${(@)ending}"
}
if [[ $funcstack[1] == _@program@ ]]; then _@program@ "$@"; else compdef _@program@ @program@; fi
)";

constexpr const char* kFish = R"(# Completion of @program@ for fish: @program@ completions fish | source
function _@program@
  set -l words (commandline -opc) (commandline -ct)
  set -e words[1]
  set -l lines (@rows@ $words)
  switch "$lines[1]"
    case '--*'  # the command line of another program
      complete -C (commandline -cp | string replace -r '.*? -- ' '')
      return
    case '/*'
      __fish_complete_path "$words[-1]"
      set -e lines[1]
  end
  printf '%s\n' $lines
end
complete -c @program@ -f -a '(_@program@)'
)";

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// Quotes the text, which all three shells do in the same way.
std::string quoted(std::string text) {
  replace_all(text, "'", "'\\''");
  return concat("'", text, "'");
}

/// Returns a row with the beginning of the meaning, at most about 100 characters.
std::string row(const std::string& command, const std::string& place, const std::string& word,
                const std::string& meaning = "") {
  std::string text = meaning.substr(0, meaning.find_first_of(";\n\t"));
  if (text.size() > 100) text = text.substr(0, text.rfind(' ', 100));
  return command + "\t" + place + "\t" + word + "\t" + text + "\n";
}

/// Returns the rows of the values of an option or a positional argument.
std::string rows_of_values(const std::string& command, const std::string& place, const CLI::Option& option) {
  // one_of() (program.h) writes the choices in braces after the type. "TEXT" may be a file, "INT" may not.
  const std::string type = option.get_type_name();
  if (option.get_single_name() == "overrides") return row(command, place, "=");
  if (type.find('{') == std::string::npos) return row(command, place, type.starts_with("TEXT") ? "/" : "");
  std::string rows;
  for (const std::string& value : CLI::detail::split(type.substr(type.find('{') + 1), ',')) {
    rows += row(command, place, value.substr(0, value.find('}')));
  }
  return rows;
}

/// Returns the rows of a command; `command` is "" for the program itself.
std::string rows_of(const CLI::App& app, const std::string& command) {
  std::string rows;
  int position = 0;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    if (option->get_positional()) {
      const bool repeats = option->get_expected_max() > 1 || option->get_allow_extra_args();
      rows += rows_of_values(command, repeats ? "*" : std::to_string(position++), *option);
      continue;
    }
    for (const std::string& name : CLI::detail::split(option->get_name(false, true), ',')) {
      if (name.find('_') != std::string::npos) continue;  // --log_dir is --log-dir
      rows += row(command, "-", name, option->get_description());
      if (option->get_items_expected_max() > 0) rows += rows_of_values(command, name, *option);
    }
  }
  return rows;
}

std::string table(const CLI::App& app, const Page& page) {
  std::string rows = rows_of(app, "");
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string name = command->get_name();
    rows += row("", "0", name, command->get_description()) + rows_of(*command, name);
  }
  rows += row("", "0", "completions", "print a script that completes " + page.name);
  rows += row("", "0", "man-page", "print the man page") + row("man-page", "0", "");
  for (const char* shell : {"bash", "zsh", "fish"}) rows += row("completions", "0", shell);
  if (page.runs_program) rows += row("", "--", "");
  for (const Word& word : page.words) {
    rows += row("=", "", word.name + "=", word.meaning);
    for (const std::string& value : word.values) rows += row("=", word.name, word.name + "=" + value);
  }
  return rows;
}

}  // namespace

std::optional<std::string> completions(const CLI::App& app, const Page& page, const std::string& shell) {
  if (shell != "bash" && shell != "zsh" && shell != "fish") return std::nullopt;
  std::string script = shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish;
  replace_all(script, "@program@", page.name);
  replace_all(script, "@rows@", "printf '%s' " + quoted(table(app, page)) + " | awk " + quoted(kLookUp));
  return script;
}

}  // namespace fsdp::cli
