#include "base/cli/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::cli {
namespace {

constexpr int kScreenLines = 24, kScreenColumns = 80, kNarrowest = 40, kWidest = 120;
constexpr size_t kNameColumn = 22, kMostExamples = 3;

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Number of characters before the continuation of a line.
size_t hanging_indent(const std::string& line, size_t columns) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  if (begin > columns / 2) return 4;
  if (begin >= kNameColumn) return begin;  // a second column alone
  const size_t gap = line.find("  ", begin);
  const size_t second = gap == std::string::npos ? gap : line.find_first_not_of(' ', gap);
  return second != std::string::npos && second <= columns / 2 ? second : begin + 4;
}

/// Breaks a line between words. `ending` ends each part but the last.
Lines broken(const std::string& line, size_t columns, size_t indent, std::string_view ending = "") {
  Lines parts;
  std::string rest = line;
  while (rest.size() > columns) {
    const size_t least = parts.empty() ? indent + 1 : indent;
    size_t at = rest.rfind(' ', columns - ending.size());
    if (at == std::string::npos || at <= least) at = rest.find(' ', columns);  // a word that is too long
    if (at == std::string::npos) break;
    parts.push_back(concat(rest.substr(0, rest.find_last_not_of(' ', at) + 1), ending));
    const size_t next = rest.find_first_not_of(' ', at);
    if (next == std::string::npos) return parts;
    rest = std::string(indent, ' ') + rest.substr(next);
  }
  parts.push_back(rest);
  return parts;
}

/// The first clause of a text in at most so many characters.
std::string clause(const std::string& text, size_t most) {
  std::string first = text.substr(0, text.find_first_of(";\n"));
  if (const size_t end = first.find(". "); end != std::string::npos) first.resize(end);
  if (first.size() <= most) return first;
  first.resize(first.rfind(' ', most - 4));
  return first + " ...";
}

std::string row(const std::string& name, const std::string& meaning) {
  std::string line = "  " + name;
  line.resize(std::max(line.size() + 2, kNameColumn), ' ');
  const size_t room = kScreenColumns - std::min<size_t>(line.size(), kScreenColumns);
  return room < 8 ? "  " + name : line + clause(meaning, room);
}

/// Appends a section below an empty line if at least its first row fits; returns how many rows it has left
/// out.
size_t add_section(Lines& lines, size_t most, const std::string& title, const Lines& rows) {
  if (rows.empty()) return 0;
  if (lines.size() + 3 > most) return rows.size();
  lines.insert(lines.end(), {"", title});
  const size_t taken = std::min(rows.size(), most - lines.size());
  lines.insert(lines.end(), rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(taken));
  return rows.size() - taken;
}

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter(Page page, const HelpSize& size) : page_(std::move(page)), size_(size) {}

  std::string make_description(const CLI::App* app) const override {
    std::string text = CLI::Formatter::make_description(app);
    if (app->get_parent() != nullptr || page_.examples.empty()) return text;
    text += "\nExamples:\n";
    for (const Example& example : page_.examples) {
      if (!example.about.empty()) text += "  # " + example.about + "\n";
      for (const std::string& line : lines_of("  " + example.command)) {
        for (const std::string& part : broken(line, columns(), /*indent=*/6, " \\")) text += part + "\n";
      }
    }
    return text + "\n";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = CLI::Formatter::make_usage(app, name);
    if (app->get_parent() != nullptr) return text;
    if (page_.runs_program) text.insert(text.size() - 1, " [--] PROGRAM [ARGUMENTS...]");
    return text + "       " + page_.name + " completions bash|zsh|fish\n       " + page_.name + " man-page\n";
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub || !size_.is_short) {
      return wrapped(CLI::Formatter::make_help(app, name, mode), size_.columns);
    }
    return screen(*app, name);
  }

 private:
  size_t columns() const { return static_cast<size_t>(size_.columns); }

  std::string screen(const CLI::App& app, const std::string& name) const {
    const std::string usage = lines_of(make_usage(&app, name)).front();
    Lines lines = broken(clause(app.get_description(), 2 * kScreenColumns - 20), kScreenColumns, 0);
    for (const std::string& line : broken(usage, kScreenColumns, /*indent=*/7)) lines.push_back(line);
    const size_t most = kScreenLines - 2;  // the last two lines are always the same
    add_section(lines, most, "Examples:", examples(name));
    Lines commands, options;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      commands.push_back(row(command->get_name(), command->get_description()));
    }
    for (const CLI::Option* option : app.get_options()) {
      const bool is_usual = option == app.get_help_ptr() || option->get_name() == "--version";
      if (option->get_group().empty() || is_usual) continue;  // an empty group hides its options
      options.push_back(row(first_name(*option), option->get_description()));
    }
    size_t left = add_section(lines, most, "Commands:", commands);
    left += add_section(lines, most, "Options:", options);
    const std::string more = left == 0 ? "" : concat(", and ", left, " more options");
    lines.insert(lines.end(), {"", concat(name, " --help describes all of it", more)});
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  }

  /// The first examples of the program or of its command that fit into a line.
  Lines examples(const std::string& name) const {
    Lines found;
    for (const Example& example : page_.examples) {
      const std::string line = "  " + example.command;
      const bool is_of_it = name == page_.name || example.command.find(name + " ") != std::string::npos;
      if (is_of_it && line.size() <= kScreenColumns && line.find('\n') == std::string::npos &&
          found.size() < kMostExamples) {
        found.push_back(line);
      }
    }
    return found;
  }

  static std::string first_name(const CLI::Option& option) {
    if (option.get_positional()) return option.get_name(true, false);
    return option.get_lnames().empty() ? "-" + option.get_snames().front()
                                       : "--" + option.get_lnames().front();
  }

  Page page_;
  HelpSize size_;
};

}  // namespace

int help_columns() {
  int columns = 80;
  winsize size{};
  if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    columns = size.ws_col;
  } else if (const char* given = std::getenv("COLUMNS"); given != nullptr && std::atoi(given) > 0) {
    columns = std::atoi(given);
  }
  return std::clamp(columns, kNarrowest, kWidest);
}

bool asks_for_short_help(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "-h") return true;
    if (word == "--help" || word == "--") return false;
  }
  return false;
}

std::shared_ptr<CLI::Formatter> help_formatter(const Page& page, const HelpSize& size) {
  return std::make_shared<HelpFormatter>(page, size);
}

std::string wrapped(const std::string& text, int columns) {
  const auto width = static_cast<size_t>(columns);
  std::string result;
  for (const std::string& line : lines_of(text)) {
    for (const std::string& part : broken(line, width, hanging_indent(line, width))) result += part + "\n";
  }
  return result;
}

}  // namespace fsdp::cli
