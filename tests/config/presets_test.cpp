#include "config/presets.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "config/config_text.h"
#include "config/keys.h"
#include "config/print.h"

namespace fsdp::config {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Presets, LoadAndHaveTheValuesThatTheySet) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    std::vector<std::string> overrides;
    for (const PresetValue& value : preset.values) overrides.push_back(value.key + "=" + value.value);
    const Config read = parse_config(preset_toml(preset), preset.name);
    EXPECT_EQ(to_toml(read), to_toml(parse_config("", "empty", overrides)));
  }
}

TEST(Presets, NameEveryKeyOfTheTable) {
  for (const Preset& preset : all_presets()) {
    std::istringstream lines(preset_toml(preset));
    std::string section;
    size_t at = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("[")) section = line.substr(1, line.size() - 2);
      EXPECT_TRUE(section.empty() || line.size() <= 110) << line;
      if (section.empty() || at == all_keys().size()) continue;
      const Key& key = all_keys()[at];
      const bool is_it = line.starts_with(key.name + " = ") || line.starts_with("# " + key.name + " = ");
      at += section == key.section && is_it;
    }
    ASSERT_EQ(at, all_keys().size()) << preset.name << " ends before " << all_keys()[at].full_name();
  }
}

TEST(Presets, CanBeWrittenWithTheirOwnKeysAlone) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    const std::string text = preset_toml(preset, PresetKeys::kGiven);
    EXPECT_EQ(to_toml(parse_config(text, "minimal")), to_toml(parse_config(preset_toml(preset), "whole")));
    for (const Key& key : all_keys()) {
      EXPECT_EQ(text.find("\n# " + key.name + " = "), std::string::npos) << key.full_name();
    }
    EXPECT_LT(text.size(), preset_toml(preset).size() / 2);
    // No section without a key.
    for (size_t at = text.find("\n["); at != std::string::npos; at = text.find("\n[", at + 1)) {
      EXPECT_NE(text[text.find('\n', at + 1) + 1], '\n') << text.substr(at, 40);
    }
  }
}

TEST(Presets, AreTheFilesOfConfigs) {
  std::set<std::string> files, names;
  for (const auto& entry : fs::directory_iterator(std::string(FSDP_SOURCE_DIR) + "/configs")) {
    if (entry.is_regular_file()) files.insert(entry.path().filename());
  }
  for (const Preset& preset : all_presets()) {
    names.insert(preset.name + ".toml");
    EXPECT_EQ(content_of(std::string(FSDP_SOURCE_DIR) + "/configs/" + preset.name + ".toml"),
              preset_toml(preset))
        << "write it anew: fsdp-train init " << preset.name << " --force --output configs/" << preset.name
        << ".toml";
  }
  EXPECT_EQ(files, names);
}

TEST(Presets, OfAnotherNameAreRefusedWithThoseThereAre) {
  const std::string message = usage_error_of([] { find_preset("pretran"); });
  EXPECT_NE(message.find("pretrain, finetune"), std::string::npos) << message;
}

}  // namespace
}  // namespace fsdp::config
