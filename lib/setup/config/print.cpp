#include "setup/config/print.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/keys.h"

namespace fsdp::config {
namespace {

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

std::string default_text(const Key& key, Config& defaults) {
  return key.follows.empty() ? toml_text(value_of(key, defaults)) : key.follows;
}

/// The text as it is, in a cell of a Markdown table.
std::string markdown_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\`*[]|").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c == '<' ? std::string("&lt;") : std::string(1, c);
  }
  return escaped;
}

using nlohmann::ordered_json;

/// The value as JSON. An infinite number, which JSON does not have, is a string as in TOML, and so are the
/// tables of optimizer.param_groups.
ordered_json json_value(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    return std::isfinite(*number) ? ordered_json(*number) : ordered_json(toml_text(value));
  }
  return std::visit(
      [&](const auto& typed) -> ordered_json {
        using Typed = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<Typed, std::vector<optim::ParameterGroupOptions>>) {
          return toml_text(value);
        } else {
          return typed;
        }
      },
      value);
}

std::string dumped(const ordered_json& json) {
  return json.dump(2, ' ', true, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string to_toml(const Config& config) { return to_toml(TracedConfig{config, {}, {}}); }

std::string as_comment(const std::string& text) {
  std::istringstream lines(util::printable(text));
  std::string comment;
  for (std::string line; std::getline(lines, line);) comment += line.empty() ? "#\n" : "# " + line + "\n";
  return comment;
}

std::string to_toml(const TracedConfig& traced) {
  constexpr size_t kCommentColumn = 44;
  Config copy = traced.config;  // the table needs fields of a non-const Config
  std::string text;
  std::string section;
  for (const Key& key : all_keys()) {
    if (key.section != section) {
      section = key.section;
      text += (text.empty() ? "[" : "\n[") + section + "]\n";
    }
    std::string line = key.name + " = " + toml_text(value_of(key, copy));
    const auto origin = traced.origins.find(key.full_name());
    // A file's name may hold characters that a comment may not.
    if (origin != traced.origins.end()) {
      std::string where = util::printable(origin->second);
      std::replace(where.begin(), where.end(), '\n', ' ');
      line = concat(padded(line, kCommentColumn), "  # ", where);
    }
    text += line + "\n";
  }
  return text;
}

std::string section_toml(const Config& config, const std::string& section) {
  Config copy = config;
  std::string text = "[" + section + "]\n";
  for (const Key& key : all_keys()) {
    if (key.section == section) text += key.name + " = " + toml_text(value_of(key, copy)) + "\n";
  }
  return text;
}

std::string help_of(const Key& key) {
  Config defaults;
  const std::string bounds = limits(key.constraint, value_of(key, defaults));
  const std::string& condition = key.matters.words;
  return key.description + (condition.empty() ? "" : "; matters when " + condition) +
         (bounds.empty() ? "" : " [" + bounds + "]");
}

std::string key_reference() {
  Config defaults;
  constexpr size_t kMeaningColumn = 26;
  std::string text;
  std::string section;
  for (const Key& key : all_keys()) {
    if (key.section != section) {
      section = key.section;
      text += (text.empty() ? "[" : "\n[") + section + "]\n";
    }
    text += concat("  ", padded(key.name, kMeaningColumn - 4), "  ", type_name(value_of(key, defaults)), ", ",
                   default_text(key, defaults), ": ", help_of(key), "\n");
  }
  return text;
}

std::string key_reference_markdown() {
  Config defaults;
  std::string text =
      "# Configuration reference\n\n"
      "<!-- Written by fsdp-train keys; a test compares this page with the table of keys. -->\n\n"
      "Every key of a config, as `fsdp-train keys` prints them. Units are part of the name (`timeout_seconds`) or\n"
      "given with the meaning. Limits and choices are in brackets at the end. [Configuration](configuration.md)\n"
      "explains files, presets, overrides, and what happens to a key where it does not matter. The models, optimizers\n"
      "and schedules of plug-ins may read any key.\n";
  std::string section;
  for (const Key& key : all_keys()) {
    if (key.section != section) {
      section = key.section;
      text += "\n## " + section + "\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
    }
    text += concat("| `", key.name, "` | ", type_name(value_of(key, defaults)), " | `",
                   default_text(key, defaults), "` | ", markdown_cell(help_of(key)), " |\n");
  }
  return text;
}

std::string key_reference_json() {
  Config defaults;
  ordered_json keys = ordered_json::array();
  for (const Key& key : all_keys()) {
    const Value value = value_of(key, defaults);
    keys.push_back({{"name", key.full_name()},
                    {"type", type_name(value)},
                    {"default", key.follows.empty() ? json_value(value) : ordered_json()},
                    {"follows", key.follows.empty() ? ordered_json() : ordered_json(key.follows)},
                    {"choices", key.constraint.choices},
                    {"meaning", help_of(key)}});
  }
  return dumped({{"keys", std::move(keys)}});
}

std::string config_json(const TracedConfig& traced) {
  Config copy = traced.config;
  ordered_json keys = ordered_json::array();
  for (const Key& key : all_keys()) {
    const auto origin = traced.origins.find(key.full_name());
    keys.push_back(
        {{"name", key.full_name()},
         {"value", json_value(value_of(key, copy))},
         {"origin", origin == traced.origins.end() ? ordered_json() : ordered_json(origin->second)}});
  }
  return dumped({{"keys", std::move(keys)}, {"warnings", traced.warnings}});
}

std::vector<std::pair<std::string, std::string>> key_texts(const Config& config) {
  Config values = config;
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Key& key : all_keys()) texts.emplace_back(key.full_name(), toml_text(value_of(key, values)));
  return texts;
}

std::vector<std::string> differing_keys(const Config& before, const Config& after) {
  const auto old_texts = key_texts(before), new_texts = key_texts(after);
  std::vector<std::string> differences;
  for (size_t i = 0; i < old_texts.size(); ++i) {
    const auto& [name, old_text] = old_texts[i];
    const std::string& new_text = new_texts[i].second;
    if (old_text != new_text) differences.push_back(name + ": " + old_text + " -> " + new_text);
  }
  return differences;
}

}  // namespace fsdp::config
