#include "setup/plugin/load.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/util/error.h"
#include "setup/config/load.h"
#include "setup/plugin/plugin.h"
#include "support/temporary_folder.h"

namespace fsdp::plugin {
namespace {

constexpr const char* kTrain = "[data]\ntrain = [\"a.bin\"]\n";

/// The error of loading a config with these plug-ins.
std::string error_of(const std::vector<std::string>& given, const std::string& text) {
  load_with_configs(given, OfConfigs::kAreLoaded);
  std::string message;
  try {
    config::parse_config(text, "c.toml");
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    message = error.what();
  }
  config::set_plugin_loader(nullptr);
  return message;
}

/// A file with the marker of a plug-in.
std::string write_description(const testing::TemporaryFolder& folder, const std::string& built_for) {
  Description description{FSDP_PLUGIN_MARKER, "", nullptr, nullptr};
  built_for.copy(description.built_for, sizeof(description.built_for) - 1);
  const std::string path = folder.path() / "libwritten.so";
  std::ofstream(path, std::ios::binary)
      << "\x7f"
         "ELF"
      << std::string(100, 'x')
      << std::string(reinterpret_cast<const char*>(&description), sizeof(description));
  return path;
}

TEST(LoadWithConfigs, NamesThePlaceOfAPluginThatIsNotThere) {
  const std::string message = error_of({}, std::string("[run]\nplugins = [\"./no.so\"]\n") + kTrain);
  EXPECT_TRUE(message.starts_with("c.toml:2: expected a plug-in (a shared library); found none at ./no.so;"))
      << message;
  EXPECT_NE(error_of({"no.so"}, kTrain).find("found none at no.so"), std::string::npos);
}

TEST(LoadWithConfigs, RefusesFilesThatAreNotPlugins) {
  testing::TemporaryFolder folder;
  const std::string path = folder.path() / "text.so";
  std::ofstream(path) << "no library";
  EXPECT_NE(error_of({path}, kTrain).find("with FSDP_PLUGIN (<fsdp/plugin.h>); found another file"),
            std::string::npos);
  EXPECT_NE(error_of({folder.path().string()}, kTrain).find("found none at"), std::string::npos);
}

TEST(LoadWithConfigs, ComparesTheVersionBeforeTheSystemLoadsAnything) {
  testing::TemporaryFolder folder;
  const std::string message = error_of({write_description(folder, "fsdp 9.9\n, libtorch 1")}, kTrain);
  EXPECT_NE(message.find("built for " FSDP_PLUGIN_BUILT_FOR "; found one for fsdp 9.9"), std::string::npos)
      << message;
  // With the right version it is passed to the system, which finds that it is not a library.
  EXPECT_NE(
      error_of({write_description(folder, FSDP_PLUGIN_BUILT_FOR)}, kTrain).find("which the system refuses:"),
      std::string::npos);
}

TEST(LoadWithConfigs, LoadsNothingThatAStoredConfigNames) {
  testing::TemporaryFolder folder;
  const std::string path = folder.path() / "config.toml";
  std::ofstream(path) << "[run]\nplugins = [\"libevil.so\"]\n" << kTrain;
  load_with_configs({}, OfConfigs::kAreLoaded);
  try {
    config::load_resolved_config(path);
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_NE(std::string(error.what()).find("if you trust that library, add --plugin libevil.so"),
              std::string::npos);
  }
  config::set_plugin_loader(nullptr);
}

TEST(LoadWithConfigs, LoadsNothingThatAConfigNamesForAProgramThatDoesNotRunIt) {
  load_with_configs({}, OfConfigs::kAreRefused);
  try {
    config::parse_config(std::string("[run]\nplugins = [\"libstranger.so\"]\n") + kTrain, "c.toml");
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_NE(std::string(error.what()).find("if you trust that library, add --plugin libstranger.so"),
              std::string::npos)
        << error.what();
  }
  config::set_plugin_loader(nullptr);
}

}  // namespace
}  // namespace fsdp::plugin
