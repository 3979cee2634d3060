#include "base/cli/usage_error.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <regex>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::cli {
namespace {

using Strings = std::vector<std::string>;

/// A program or a command that the command line names.
struct CommandPlace {
  const CLI::App* app;
  std::string name;  ///< "fsdp-ckpt inspect"
};

std::vector<CommandPlace> places_of(const CLI::App& app, const std::string& program) {
  std::vector<CommandPlace> places = {{&app, program}};
  for (const CLI::App* command : app.get_subcommands()) {
    places.push_back({command, concat(program, " ", command->get_name())});
  }
  return places;
}

/// Returns the usage as --help prints it after "Usage: ": "fsdp-ckpt inspect [OPTIONS] path".
std::string usage_of(const CommandPlace& place) {
  const std::string text = CLI::Formatter().make_usage(place.app, place.name);
  const size_t begin = std::string("Usage: ").size();
  return text.substr(begin, text.find('\n') - begin);
}

Strings long_options(const CLI::App& app) {
  Strings names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(concat("--", name));
  }
  return names;
}

bool contains(const Strings& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the only option with that prefix: "--gpu-memory-gib" for "--gpu-memory"; "" if there is not one.
std::string only_completion(const std::string& name, const Strings& options) {
  std::string found;
  for (const std::string& option : options) {
    if (name.size() < 5 || !option.starts_with(name)) continue;
    if (!found.empty()) return "";
    found = option;
  }
  return found;
}

/// Returns "write training.steps=5" for "--training.steps=5" or "--steps=5"; "" if the word is probably not a
/// key.
std::string meant_key(const std::string& bare_name, const std::string& value, const Page& page) {
  Strings keys, homonyms;
  for (const Word& word : page.words) {
    keys.push_back(word.name);
    if (word.name.substr(word.name.find('.') + 1) == bare_name) homonyms.push_back(word.name);
  }
  std::string key = contains(keys, bare_name) ? bare_name : "";
  if (key.empty() && page.answer_to_foreign_word) {
    if (std::string answer = page.answer_to_foreign_word(bare_name, value); !answer.empty()) return answer;
  }
  if (key.empty() && homonyms.size() == 1) key = homonyms.front();
  if (key.empty() && bare_name.find('.') != std::string::npos) key = util::nearest(bare_name, keys);
  if (key.empty()) return "";
  return concat("write ", util::shell_word(concat(key, "=", value.empty() ? "VALUE" : value)));
}

std::string unknown_option_text(const CLI::App& root, const CommandPlace& place, const Page& page,
                                const std::string& word) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string found = concat("; found ", util::shell_word(word));
  if (place.app->get_option_no_throw("overrides") != nullptr) {
    std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    std::replace(bare.begin(), bare.end(), '-', '_');
    const std::string meant =
        meant_key(bare, equals == std::string::npos ? "" : word.substr(equals + 1), page);
    if (!meant.empty()) return concat("expected keys of the config without dashes", found, "; ", meant);
  }
  const std::string what = concat("expected an option of ", place.name, found);
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; })) {
    if (place.app == &root && contains(long_options(*command), name)) {
      return concat(what, "; write it after its command, as in ", page.name, " ", command->get_name(), " ",
                    name);
    }
  }
  const Strings options = long_options(*place.app);
  std::string near = only_completion(name, options);
  if (near.empty() && name.starts_with("--")) near = util::nearest_choice(name, options);
  return near.empty() ? concat(what, "; see ", place.name, " --help")
                      : concat(what, "; did you mean ", near, "?");
}

/// Returns the page's first example of the program or command.
std::string remedy_at(const CommandPlace& place, const Page& page) {
  for (const Example& example : page.examples) {
    const bool fits = example.command.starts_with(concat(place.name, " "));
    if (fits && example.command.find('\n') == std::string::npos) {
      return concat("; for example: ", example.command);
    }
  }
  return concat("; see ", place.name, " --help");
}

Strings all_commands(const CLI::App& app) {
  Strings names = command_names(app);
  names.insert(names.end(), {"completions", "man-page"});
  return names;
}

/// Describes the first word that no option or positional argument took.
std::optional<std::string> leftover_text(const CLI::App& app, const Page& page,
                                         const std::vector<CommandPlace>& places) {
  for (const CommandPlace& place : places) {
    const Strings words = place.app->remaining();
    if (words.empty()) continue;
    const std::string& word = words.front();
    const bool is_option = word.size() > 1 && word.front() == '-' && word != "--";
    if (is_option) return unknown_option_text(app, place, page, word);
    if (place.app->get_prefix_command()) continue;  // the command line of another program
    if (place.app == &app && places.size() == 1 && !command_names(app).empty()) {
      const std::string near = util::nearest_choice(word, all_commands(app));
      return concat("expected a command of ", page.name, "; found ", util::shell_word(word),
                    near.empty() ? concat("; the commands are ", util::join(command_names(app), ", "))
                                 : concat("; did you mean ", near, "?"));
    }
    return concat("expected ", usage_of(place), "; found ", util::shell_word(word),
                  " in addition; leave it out, or put words with spaces in quotes");
  }
  return std::nullopt;
}

/// Describes a missing required option, positional argument or command.
std::optional<std::string> missing_text(const CLI::App& app, const Page& page,
                                        const std::vector<CommandPlace>& places) {
  for (const CommandPlace& place : places) {
    for (const CLI::Option* option : place.app->get_options()) {
      if (!option->get_required() || option->count() > 0) continue;
      return concat("expected ", usage_of(place), "; found no ", option->get_name(), " (",
                    option->get_description(), ")", remedy_at(place, page));
    }
  }
  if (places.size() > 1 || app.get_require_subcommand_min() == 0) return std::nullopt;
  return concat("expected a command of ", page.name, ", one of ", util::join(command_names(app), ", "),
                "; found none", remedy_at(places.front(), page));
}

std::optional<std::string> wrong_pair_text(const std::vector<CommandPlace>& places) {
  for (const CommandPlace& place : places) {
    for (const CLI::Option* option : place.app->get_options()) {
      if (option->count() == 0) continue;
      for (const CLI::Option* other : option->get_excludes()) {
        if (other->count() == 0) continue;
        return concat("expected one of ", option->get_name(), " and ", other->get_name(),
                      "; found both; leave one out");
      }
      for (const CLI::Option* other : option->get_needs()) {
        if (other->count() > 0) continue;
        return concat(option->get_name(), ": expected ", other->get_name(), " with it; found none; add it");
      }
    }
  }
  return std::nullopt;
}

std::string kind_of_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.starts_with("INT")) return "an integer";
  if (type.starts_with("UINT")) return "an integer >= 0";
  if (type.starts_with("FLOAT")) return "a number";
  return "a value";
}

/// Describes a wrong value of the option that begins CLI11's message.
std::string wrong_value_text(const std::vector<CommandPlace>& places, const CLI::ParseError& error) {
  const std::string message = error.what();
  const std::string conversion = "Could not convert: ";
  for (const CommandPlace& place : places) {
    for (const CLI::Option* option : place.app->get_options()) {
      const std::string name = option->get_name();
      if (message.starts_with(conversion + name + " = ")) {
        return concat(name, ": expected ", kind_of_value(*option), "; found ",
                      util::join(option->results(), " "), "; see ", place.name, " --help");
      }
      if (message.starts_with(name + ": ") && error.get_name() == "ArgumentMismatch") {
        return concat(name, ": expected ", kind_of_value(*option), " after it; found none; see ", place.name,
                      " --help");
      }
    }
  }
  return concat(message, "; see ", places.back().name, " --help");
}

}  // namespace

std::vector<std::string> command_names(const CLI::App& app) {
  Strings names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string misspelt_command(const CLI::App& app, const std::string& word) {
  std::error_code ignored;
  if (word.find_first_of("./") != std::string::npos || std::filesystem::exists(word, ignored)) return "";
  return util::nearest_choice(word, all_commands(app));
}

std::string usage_error_text(const CLI::App& app, const Page& page, const CLI::ParseError& error) {
  const std::vector<CommandPlace> places = places_of(app, page.name);
  const std::string name = error.get_name();
  std::optional<std::string> text = leftover_text(app, page, places);
  if (!text && name == "RequiredError") text = missing_text(app, page, places);
  if (!text && (name == "RequiresError" || name == "ExcludesError")) text = wrong_pair_text(places);
  if (!text) text = name == "ValidationError" ? error.what() : wrong_value_text(places, error);
  return concat("command line: ", *text);
}

std::string with_flags(const std::string& text, const FlagNames& names) {
  static const std::regex field("`([a-z_]+)`");
  std::string result;
  auto end = text.begin();
  for (std::sregex_iterator match(text.begin(), text.end(), field), none; match != none; ++match) {
    result.append(end, (*match)[0].first);
    std::string name = (*match)[1];
    if (const auto found = names.find(name); found != names.end()) {
      result += found->second;
    } else {
      std::replace(name.begin(), name.end(), '_', '-');
      result += "--" + name;
    }
    end = (*match)[0].second;
  }
  return result.append(end, text.end());
}

int run_command(const std::function<int()>& command, const FlagNames& names) {
  try {
    return command();
  } catch (const util::Error& error) {
    throw util::Error(error.kind(), with_flags(error.what(), names));
  }
}

}  // namespace fsdp::cli
