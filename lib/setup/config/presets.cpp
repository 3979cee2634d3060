#include "setup/config/presets.h"

#include <algorithm>
#include <sstream>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::config {
namespace {

struct EmbeddedFile {
  const char* name;
  const char* text;
};

constexpr EmbeddedFile kFiles[] = {
#include "config/preset_files.inc"
};

/// Files of lib/model/families/presets, which have the names of families.
constexpr EmbeddedFile kModelFiles[] = {
#include "config/model_preset_files.inc"
};

/// Each line `NAME = {KEY = VALUE, ...}` below a [heading] is a preset, which also has the keys of the line
/// `all`.
void add_presets(const EmbeddedFile& file, std::vector<ModelPreset>& presets) {
  std::istringstream lines(file.text);
  std::string shared;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) shared = concat("[model]\narchitecture = \"", file.name, "\"\n");
    const size_t brace = line.find(" = {");
    if (brace == std::string::npos) continue;
    std::string name = line.substr(0, brace), keys = line.substr(brace + 4, line.size() - brace - 5) + "\n";
    std::erase(name, '"');
    for (size_t at = keys.find(", "); at != std::string::npos; at = keys.find(", "))
      keys.replace(at, 2, "\n");
    if (name == "all") {
      shared += keys;
    } else {
      presets.push_back({name, shared + keys});
    }
  }
}

Preset preset_of(const EmbeddedFile& file) {
  const std::string text = file.text;
  constexpr std::string_view kBegin = "# ", kEnd = ".\n";
  FSDP_CHECK(text.starts_with(kBegin) && text.find(kEnd) < text.find('\n'), "configs/", file.name,
             ".toml does not begin with a comment that is a sentence");
  return {file.name, text.substr(kBegin.size(), text.find(kEnd) - kBegin.size()), text};
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> presets = [] {
    std::vector<ModelPreset> read;
    for (const EmbeddedFile& file : kModelFiles) add_presets(file, read);
    return read;
  }();
  return presets;
}

const ModelPreset* find_model_preset(std::string_view name) {
  const auto found = std::ranges::find(model_presets(), name, &ModelPreset::name);
  return found == model_presets().end() ? nullptr : &*found;
}

const std::vector<Preset>& all_presets() {
  static const std::vector<Preset> presets = [] {
    std::vector<Preset> read;
    for (const EmbeddedFile& file : kFiles) read.push_back(preset_of(file));
    return read;
  }();
  return presets;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : all_presets()) names.push_back(preset.name);
  return names;
}

const Preset& find_preset(std::string_view name) {
  for (const Preset& preset : all_presets()) {
    if (preset.name == name) return preset;
  }
  fail(ErrorKind::kUsage, "unknown preset \"", util::printable(name),
       "\"; expected one of: ", util::join(preset_names(), ", "));
}

}  // namespace fsdp::config
