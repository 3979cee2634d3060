#include "cli/outline.h"

#include <algorithm>

#include "util/error.h"

namespace fsdp::cli {
namespace {

/// From the name of a type that contains "{a,b}", as that of one_of() (program.h) does.
std::vector<std::string> choices_in(const std::string& type) {
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end <= begin + 1) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

Flag flag_of(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back(util::concat("-", name));
  for (const std::string& name : option.get_lnames()) {
    // --log_dir beside --log-dir
    std::string other = name;
    std::replace(other.begin(), other.end(), '_', '-');
    const auto& names = option.get_lnames();
    if (other != name && std::find(names.begin(), names.end(), other) != names.end()) continue;
    flag.names.push_back(util::concat("--", name));
  }
  flag.takes_value = option.get_items_expected_max() > 0;
  if (flag.takes_value) {
    const std::string type = option.get_type_name();
    flag.type = type.empty() ? "VALUE" : type.substr(0, type.find_first_of(":{"));
    flag.values = choices_in(type);
    flag.default_value = option.get_default_str();
  }
  flag.meaning = option.get_description();
  return flag;
}

}  // namespace

Outline outline_of(const CLI::App& app) {
  Outline outline{app.get_name(), app.get_description(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      outline.positionals.push_back(
          {.name = option->get_single_name(),
           .required = option->get_required(),
           .repeats = option->get_expected_max() > 1 || option->get_allow_extra_args(),
           .values = choices_in(option->get_type_name()),
           .meaning = option->get_description()});
    } else if (!option->get_group().empty()) {  // an empty group: hidden
      outline.flags.push_back(flag_of(*option));
    }
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    outline.commands.push_back(outline_of(*command));
  }
  return outline;
}

bool takes_words(const Outline& outline) {
  return std::any_of(outline.positionals.begin(), outline.positionals.end(),
                     [](const Positional& positional) { return positional.name == "overrides"; });
}

std::string usage_of(const Outline& outline) {
  std::string text = "[OPTIONS]";
  for (const Positional& positional : outline.positionals) {
    const std::string name = positional.name + (positional.repeats ? "..." : "");
    text += positional.required ? util::concat(" ", name) : util::concat(" [", name, "]");
  }
  return text;
}

}  // namespace fsdp::cli
