#include "setup/config/presets.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "setup/config/config_text.h"
#include "support/source_folder.h"

namespace fsdp::config {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = testing::source_folder();

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Presets, AreTheFilesOfConfigs) {
  std::set<std::string> files, names;
  for (const auto& entry : fs::directory_iterator(kSource / "configs")) {
    // A config that includes another one is no preset: init prints a single file.
    const bool includes = content_of(entry.path()).find("\ninclude = ") != std::string::npos;
    if (entry.is_regular_file() && !includes) files.insert(entry.path().filename());
  }
  for (const Preset& preset : all_presets()) {
    names.insert(preset.name + ".toml");
    EXPECT_EQ(preset.text, content_of(kSource / "configs" / (preset.name + ".toml")));
  }
  EXPECT_EQ(files, names) << "lib/setup/config/CMakeLists.txt lists those that are embedded";
}

TEST(Presets, SayWhatTheyAreForInTheirFirstLine) {
  EXPECT_TRUE(find_preset("finetune").about.starts_with("Fine-tuning: SmolLM2-135M from Hugging Face"));
  for (const Preset& preset : all_presets()) {
    EXPECT_LE(preset.about.size(), 90u) << preset.name;
    EXPECT_EQ(preset.text.substr(0, preset.text.find('\n')), "# " + preset.about + ".");
  }
}

TEST(Presets, LoadWithTheNameOfTheirFile) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    const Config config = parse_config(preset.text, preset.name);
    EXPECT_EQ(config.run.name, preset.name);
    EXPECT_EQ(config.run.output_dir, "checkpoints/" + preset.name);
  }
}

TEST(Presets, AreShortAndNarrow) {
  for (const Preset& preset : all_presets()) {
    std::istringstream lines(preset.text);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 120u) << line;
    EXPECT_LE(count, 90) << preset.name;
  }
}

TEST(Presets, AreListedInTheDocumentation) {
  const std::string page = content_of(kSource / "docs/configuration.md");
  for (const Preset& preset : all_presets()) {
    EXPECT_NE(page.find("| `" + preset.name + "` | " + preset.about + " |\n"), std::string::npos)
        << "docs/configuration.md lacks the row of " << preset.name << ": " << preset.about;
  }
}

TEST(Presets, OfAnotherNameAreRefusedWithThoseThereAre) {
  const std::string message = usage_error_of([] { find_preset("pretran"); });
  EXPECT_NE(message.find("pretrain, finetune"), std::string::npos) << message;
}

}  // namespace
}  // namespace fsdp::config
