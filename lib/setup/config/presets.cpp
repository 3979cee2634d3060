#include "setup/config/presets.h"

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::config {
namespace {

struct File {
  const char* name;
  const char* text;
};

constexpr File kFiles[] = {
#include "config/preset_files.inc"
};

Preset preset_of(const File& file) {
  const std::string text = file.text;
  constexpr std::string_view kBegin = "# ", kEnd = ".\n";
  FSDP_CHECK(text.starts_with(kBegin) && text.find(kEnd) < text.find('\n'), "configs/", file.name,
             ".toml does not begin with a comment that is a sentence");
  return {file.name, text.substr(kBegin.size(), text.find(kEnd) - kBegin.size()), text};
}

}  // namespace

const std::vector<Preset>& all_presets() {
  static const std::vector<Preset> presets = [] {
    std::vector<Preset> read;
    for (const File& file : kFiles) read.push_back(preset_of(file));
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
  util::fail(util::ErrorKind::kUsage, "unknown preset \"", util::printable(name),
             "\"; expected one of: ", util::join(preset_names(), ", "));
}

}  // namespace fsdp::config
