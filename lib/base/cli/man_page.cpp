#include "base/cli/shell_files.h"
#include "base/util/error.h"
#include "base/util/version.h"

namespace fsdp::cli {
namespace {

/// Returns the text for troff: backslashes and hyphens are escaped, and no line would be a request.
std::string escaped(const std::string& text) {
  std::string result;
  bool begins_line = true;
  for (char c : text) {
    if (begins_line && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\' || c == '-') result += '\\';
    result += c == '\\' ? 'e' : c;
    begins_line = c == '\n';
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }

std::string item(const std::string& head, const std::string& body) {
  return ".TP\n" + head + "\n" + (body.empty() ? "\\&" : escaped(body)) + "\n";
}

/// Returns names and types as in --help, with spaces where a line may end.
std::string options_of(const CLI::App& app) {
  const CLI::Formatter formatter;
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    const std::string name = formatter.make_option_name(option, option->get_positional());
    std::string head = bold(name) + escaped(formatter.make_option_opts(option));
    for (size_t at = 0; (at = head.find(',', at)) != std::string::npos; ++at) head.replace(at, 1, ", ");
    text += item(head, option->get_description());
  }
  return text;
}

/// Returns the usage as --help prints it after "Usage: ". `parent` is the program of a command.
std::string usage_of(const CLI::App& app, const std::string& parent) {
  const std::string help = app.help(parent);
  const size_t begin = help.find("Usage: ") + 7;
  return escaped(help.substr(begin, help.find("\n\n", begin) + 1 - begin));
}

std::string exit_status() {
  const std::pair<int, const char*> codes[] = {
      {0, "done"},
      {1, "unexpected; with a command that compares: different"},
      {2, "command line, environment or config"},
      {3, "token files, texts, samples"},
      {4, "checkpoint or weights file"},
      {5, "another process of the run is gone"},
      {6, "a collective or the rendezvous timed out"},
      {7, "disk or permission"},
      {8, "diverged: loss, gradient norm, validation or score not finite, or too many skipped steps"},
      {util::kExitPreempted, "stopped by a signal: saved, not finished"}};
  std::string text;
  for (const auto& [code, meaning] : codes) text += item(bold(std::to_string(code)), meaning);
  return text;
}

std::string unfilled(const std::string& text) { return ".nf\n" + escaped(text) + "\n.fi\n"; }

}  // namespace

std::string man_page(const CLI::App& app, const Page& page) {
  const std::vector<const CLI::App*> commands = app.get_subcommands({});
  std::string text = ".TH " + page.name + " 1 \"\" \"fsdp " + util::version() + "\" \"fsdp\"\n";
  text += ".SH NAME\n" + escaped(page.name) + " \\- " + escaped(page.summary) + "\n";
  text += ".SH SYNOPSIS\n.nf\n" + usage_of(app, "");
  for (const CLI::App* command : commands) text += usage_of(*command, page.name);
  text += ".fi\n.SH DESCRIPTION\n" + escaped(app.get_description()) + "\n.SH EXAMPLES\n";
  for (const Example& example : page.examples) {
    if (!example.about.empty()) text += escaped(example.about) + ":\n";
    text += ".PP\n.RS 4\n" + unfilled(example.command) + ".RE\n.PP\n";
  }
  text += ".SH OPTIONS\n" + options_of(app);
  if (!commands.empty()) text += ".SH COMMANDS\n";
  for (const CLI::App* command : commands) {
    text += ".SS " + escaped(command->get_name()) + "\n" + escaped(command->get_description()) + "\n" +
            options_of(*command);
  }
  if (!page.words.empty()) text += ".SH KEYS\n";
  for (const Word& word : page.words) text += item(bold(word.name), word.meaning);
  if (page.words.empty() && !app.get_footer().empty()) text += ".SH NOTES\n" + unfilled(app.get_footer());
  return text + ".SH EXIT STATUS\n" + exit_status();
}

}  // namespace fsdp::cli
