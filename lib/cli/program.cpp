#include "cli/program.h"

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "cli/completions.h"
#include "cli/man_page.h"
#include "cli/usage_error.h"
#include "cli/version.h"
#include "util/error.h"
#include "util/limits.h"

namespace fsdp::cli {
namespace {

/// CLI11's, with examples before the usage of the program.
class HelpFormatter final : public CLI::Formatter {
 public:
  explicit HelpFormatter(Page page) : page_(std::move(page)) {}

  std::string make_description(const CLI::App* app) const override {
    std::string text = CLI::Formatter::make_description(app);
    if (app->get_parent() != nullptr || page_.examples.empty()) return text;
    text += "\nExamples:\n";
    for (const Example& example : page_.examples) {
      if (!example.about.empty()) text += "  # " + example.about + "\n";
      text += "  " + example.command + "\n";
    }
    return text + "\n";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = CLI::Formatter::make_usage(app, name);
    if (app->get_parent() != nullptr) return text;
    return text + "       " + page_.name + " completions bash|zsh|fish\n       " + page_.name + " man-page\n";
  }

 private:
  Page page_;
};

}  // namespace

void print(const std::string& text) {
  std::cout << text << std::flush;
  if (!std::cout) util::fail(util::ErrorKind::kIo, "cannot write to standard output");
}

bool prepare(CLI::App& app, const Page& page, int argc, const char* const* argv) {
  util::prepare_for_limits();
  app.formatter(std::make_shared<HelpFormatter>(page));
  app.set_version_flag(
      "--version", [name = page.name] { return version_text(name); }, "Print versions and exit");
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "man-page" && argc == 2) {
    print(man_page(outline_of(app), page, app.get_footer()));
    return true;
  }
  if (first != "completions") return false;
  const std::string shell = argc == 3 ? argv[2] : "";
  const auto script = completions(outline_of(app), page, shell);
  if (!script) {
    util::fail(util::ErrorKind::kUsage, "expected ", page.name, " completions bash, zsh or fish; found ",
               argc < 3   ? "no shell"
               : argc > 3 ? "more words"
                          : util::concat("\"", shell, "\""));
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
      if (error.get_exit_code() != 0) util::fail(util::ErrorKind::kUsage, usage_error_text(app, page, error));
      app.exit(error);
      print("");  // what exit() printed
      return 0;
    });
  }
  return std::nullopt;
}

}  // namespace fsdp::cli
