#include <sstream>

#include "cli/outline.h"
#include "util/error.h"
#include "util/text.h"
#include "util/version.h"

namespace fsdp::cli {
namespace {

/// Text for troff, with backslashes and hyphens escaped, and without lines that would be requests.
std::string escaped(const std::string& text) {
  std::string result;
  bool begins_line = true;
  for (char c : text) {
    if (begins_line && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    begins_line = c == '\n';
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

/// A tagged paragraph.
std::string item(const std::string& head, const std::string& body) {
  return ".TP\n" + head + "\n" + (body.empty() ? "\\&" : escaped(body)) + "\n";
}

std::string options_of(const Outline& outline) {
  std::string text;
  for (const Positional& positional : outline.positionals) {
    std::string meaning = positional.meaning;
    if (!positional.values.empty()) meaning += ": " + util::join(positional.values, ", ");
    text += item(italic(positional.name + (positional.repeats ? " ..." : "")), meaning);
  }
  for (const Flag& flag : outline.flags) {
    // Many values joined by | would be too long a word to break.
    constexpr size_t kValuesInHead = 8;
    const bool has_many = flag.values.size() > kValuesInHead;
    std::string head;
    for (const std::string& name : flag.names) head += (head.empty() ? "" : ", ") + bold(name);
    if (flag.takes_value) {
      head += " " + italic(flag.values.empty() || has_many ? flag.type : util::join(flag.values, "|"));
    }
    std::string meaning = flag.meaning;
    if (has_many) meaning += ": " + util::join(flag.values, ", ");
    if (!flag.default_value.empty()) meaning += " [" + flag.default_value + "]";
    text += item(head, meaning);
  }
  return text;
}

std::string exit_status() {
  using util::ErrorKind;
  const std::vector<std::pair<ErrorKind, const char*>> kinds = {
      {ErrorKind::kUnexpected, "unexpected; with a command that compares: different"},
      {ErrorKind::kUsage, "command line, environment or config"},
      {ErrorKind::kData, "token files, texts, samples"},
      {ErrorKind::kCheckpoint, "checkpoint or weights file"},
      {ErrorKind::kPeerLost, "another process of the run is gone"},
      {ErrorKind::kTimeout, "a collective or the rendezvous timed out"},
      {ErrorKind::kIo, "disk or permission"},
      {ErrorKind::kDiverged, "diverged: loss or gradient norm not finite, or too many skipped steps"}};
  std::string text = item(bold("0"), "done");
  for (const auto& [kind, meaning] : kinds) {
    text += item(bold(std::to_string(static_cast<int>(kind))), meaning);
  }
  return text + item(bold(std::to_string(util::kExitPreempted)), "stopped by a signal: saved, not finished");
}

/// Without filling lines.
std::string unfilled(const std::string& text) { return ".nf\n" + escaped(text) + "\n.fi\n"; }

}  // namespace

std::string man_page(const Outline& outline, const Page& page, const std::string& notes) {
  std::string text = ".TH " + page.name + " 1 \"\" \"fsdp " + util::version() + "\" \"fsdp\"\n";
  text += ".SH NAME\n" + escaped(page.name) + " \\- " + escaped(page.summary) + "\n";
  text += ".SH SYNOPSIS\n.nf\n";
  if (!outline.positionals.empty() || outline.commands.empty()) {
    text += bold(page.name) + " " + escaped(usage_of(outline)) +
            (page.runs_program ? escaped(" [--] PROGRAM [ARGUMENTS...]") : "") + "\n";
  }
  for (const Outline& command : outline.commands) {
    text += bold(page.name + " " + command.name) + " " + escaped(usage_of(command)) + "\n";
  }
  text += bold(page.name + " completions") + " bash|zsh|fish\n";
  text += bold(page.name + " man-page") + "\n.fi\n";
  text += ".SH DESCRIPTION\n" + escaped(outline.meaning) + "\n";
  for (size_t i = 0; i < page.examples.size(); ++i) {
    const Example& example = page.examples[i];
    text += i == 0 ? ".SH EXAMPLES\n" : ".PP\n";
    if (!example.about.empty()) text += escaped(example.about) + ":\n.PP\n";
    text += ".RS 4\n" + unfilled(example.command) + ".RE\n";
  }
  text += ".SH OPTIONS\n" + options_of(outline);
  if (!outline.commands.empty()) text += ".SH COMMANDS\n";
  for (const Outline& command : outline.commands) {
    text += ".SS " + escaped(command.name) + "\n" + escaped(command.meaning) + "\n" + options_of(command);
  }
  if (!page.words.empty()) text += ".SH KEYS\n";
  for (const Word& word : page.words) text += item(bold(word.name), word.meaning);
  if (page.words.empty() && !notes.empty()) text += ".SH NOTES\n" + unfilled(notes);
  return text + ".SH EXIT STATUS\n" + exit_status();
}

}  // namespace fsdp::cli
