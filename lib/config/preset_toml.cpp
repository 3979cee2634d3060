// preset_toml().

#include <sstream>

#include "config/keys.h"
#include "config/presets.h"
#include "config/print.h"
#include "util/error.h"

namespace fsdp::config {
namespace {

constexpr size_t kWidth = 110;
constexpr size_t kHelpColumn = 42;  ///< of a comment behind a key

/// `text` as lines of at most `width` characters.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

/// `left` and its help as a comment from kHelpColumn on, in several lines if necessary.
std::string with_help(const std::string& left, const std::string& help) {
  const auto padded = [](std::string text) { return text.append(kHelpColumn - text.size(), ' '); };
  // Begins with # so that it cannot be mistaken for a key.
  const std::string continued = padded("#");
  const bool is_long = left.size() >= kHelpColumn;  // its help stands under it
  std::string text = is_long ? util::concat(left, "\n") : "";
  for (const std::string& line : wrapped(help, kWidth - kHelpColumn - 2)) {
    text += util::concat(text.empty() ? padded(left) : continued, "# ", line, "\n");
  }
  return text;
}

/// The key with the preset's value, or with its default as a comment.
std::string line_of(const Key& key, const PresetValue* value) {
  if (value) {
    return with_help(key.name + " = " + value->value, value->note.empty() ? help_of(key) : value->note);
  }
  Config defaults;
  const std::string text = toml_text(value_of(key, defaults));
  const std::string follows = key.follows.empty() ? "" : util::concat("; not given: as ", key.follows);
  return with_help(util::concat("# ", key.name, " = ", text), help_of(key) + follows);
}

}  // namespace

std::string preset_toml(const Preset& preset, PresetKeys keys) {
  std::string text;
  std::istringstream head(preset.text);
  for (std::string line; std::getline(head, line);)
    text += line.empty() ? "#\n" : util::concat("# ", line, "\n");
  if (keys == PresetKeys::kGiven) {
    text += "#\n# All other keys have their defaults; `fsdp-train --help` lists them.\n";
  } else {
    text +=
        "#\n# Keys that are commented out show their defaults. Every key can be given on the command "
        "line too, as in\n# `fsdp-train CONFIG training.steps=20`. Paths are relative to the folder that "
        "the program is started in.\n";
  }
  size_t used = 0;
  std::string section;
  for (const Key& key : all_keys()) {
    const PresetValue* given = nullptr;
    for (const PresetValue& value : preset.values) {
      if (value.key == key.full_name()) given = &value;  // of two the later one counts
    }
    used += given != nullptr;
    if (!given && keys == PresetKeys::kGiven) continue;
    if (key.section != section) {
      section = key.section;
      text += util::concat("\n[", section, "]\n");
    }
    text += line_of(key, given);
  }
  FSDP_CHECK(used > 0, preset.name, " sets no key");
  return text;
}

}  // namespace fsdp::config
