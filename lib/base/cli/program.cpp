#include "base/cli/program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <utility>

#include "base/cli/help.h"
#include "base/cli/shell_files.h"
#include "base/cli/usage_error.h"
#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/text.h"

namespace fsdp::cli {
namespace {

CLI::Validator number_that(const std::string& bounds, std::function<bool(double)> is_allowed) {
  return CLI::Validator(
      [bounds, is_allowed = std::move(is_allowed)](const std::string& text) -> std::string {
        double value = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end && std::isfinite(value) && is_allowed(value)) return "";
        return concat("expected a number ", bounds, "; found ", text.empty() ? "an empty argument" : text);
      },
      bounds);
}

}  // namespace

void print(const std::string& text) {
  std::cout << util::printable(text) << std::flush;
  if (!std::cout) fail(ErrorKind::kIo, "cannot write to standard output");
}

bool prepare(CLI::App& app, const Page& page, int argc, const char* const* argv) {
  util::prepare_for_limits();
  const auto formatter =
      help_formatter(page, {.is_short = asks_for_short_help(argc, argv), .columns = help_columns()});
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    command->formatter(formatter);
  }
  app.set_version_flag(
      "--version", [name = page.name] { return version_text(name); }, "Print versions and exit");
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "man-page" && argc == 2) {
    print(man_page(app, page));
    return true;
  }
  if (first != "completions") return false;
  const std::string shell = argc == 3 ? argv[2] : "";
  const auto script = completions(app, page, shell);
  if (!script) {
    fail(ErrorKind::kUsage, "expected ", page.name, " completions bash, zsh or fish; found ",
         argc < 3   ? "no shell"
         : argc > 3 ? "more words"
                    : concat("\"", shell, "\""));
  }
  print(*script);
  return true;
}

std::optional<int> parse(CLI::App& app, const Page& page, int argc, char** argv) {
  bool printed = false;
  const int code = util::run_guarded([&] {
    printed = prepare(app, page, argc, argv);
    return 0;
  });
  if (printed || code != 0) return code;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return util::run_guarded([&] {
      if (error.get_exit_code() != 0) fail(ErrorKind::kUsage, usage_error_text(app, page, error));
      app.exit(error);
      print("");  // flushes, and checks the output of exit()
      return 0;
    });
  }
  return std::nullopt;
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("expected a name; found an empty argument; is a variable not set?")
                            : std::string();
      },
      "");
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  return CLI::Validator(
      [choices](const std::string& text) -> std::string {
        if (std::find(choices.begin(), choices.end(), text) != choices.end()) return "";
        const std::string near = util::nearest_choice(text, choices);
        return concat("expected ", choices.size() > 1 ? "one of " : "", util::join(choices, ", "), "; found ",
                      text.empty() ? "an empty argument" : util::shell_word(text),
                      near.empty() ? "" : concat("; did you mean ", near, "?"));
      },
      concat("{", util::join(choices, ","), "}"));
}

CLI::Validator at_least(double min) {
  return number_that(concat(">= ", min), [min](double value) { return value >= min; });
}

CLI::Validator above(double min) {
  return number_that(concat("> ", min), [min](double value) { return value > min; });
}

CLI::Validator between(int64_t min, int64_t max) {
  return number_that(concat("from ", min, " to ", max), [min, max](double value) {
    return value >= static_cast<double>(min) && value <= static_cast<double>(max);
  });
}

}  // namespace fsdp::cli
