#include "setup/config/include.h"

#include <gtest/gtest.h>

#include "base/util/file.h"
#include "setup/config/config_text.h"
#include "setup/config/load.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace {

namespace fs = std::filesystem;

struct Files {
  fs::path write(const std::string& name, const std::string& text) {
    fs::create_directories((folder.path() / name).parent_path());
    return folder.write(name, text);
  }
  std::string error_of(const fs::path& file) {
    return usage_error_of([&] { load_config(file); });
  }
  testing::TemporaryFolder folder;
};

TEST(Include, AFileOverridesWhatItIncludesAndLaterFilesEarlierOnes) {
  Files files;
  files.write("a.toml", kTrain + "[training]\nsteps = 1\nmax_grad_norm = 1.5\nz_loss = 0.1\n");
  files.write("b.toml", "[training]\nsteps = 2\nmax_grad_norm = 2.5\n");
  const auto top = files.write("c.toml", "include = [\"a.toml\", \"b.toml\"]\n[training]\nsteps = 3\n");
  const TracedConfig traced = trace_config(top, {"run.seed=9"});
  EXPECT_EQ(traced.config.training.steps, 3);
  EXPECT_EQ(traced.config.training.max_grad_norm, 2.5);
  EXPECT_EQ(traced.config.training.z_loss, 0.1);
  EXPECT_EQ(traced.origins.at("training.steps"), top.string() + ":3");
  EXPECT_EQ(traced.origins.at("training.max_grad_norm"), (files.folder.path() / "b.toml").string() + ":3");
  EXPECT_EQ(traced.origins.at("training.z_loss"), (files.folder.path() / "a.toml").string() + ":6");
  EXPECT_EQ(traced.origins.at("run.seed"), "command line");
}

TEST(Include, PathsAreRelativeToTheFileThatNamesThem) {
  Files files;
  files.write("shared/deep/base.toml", kTrain);
  files.write("shared/middle.toml", "include = [\"deep/base.toml\"]\n[run]\nseed = 4\n");
  const auto top = files.write("runs/top.toml", "include = [\"../shared/middle.toml\"]\n");
  const TracedConfig traced = trace_config(top);
  EXPECT_EQ(traced.config.run.seed, 4);
  EXPECT_EQ(traced.origins.at("data.train"), (files.folder.path() / "shared/deep/base.toml").string() + ":2");
}

TEST(Include, TheSameFileMayBeReachedTwice) {
  Files files;
  files.write("base.toml", kTrain + "[run]\nseed = 1\n");
  files.write("a.toml", "include = [\"base.toml\"]\n[run]\nseed = 2\n");
  files.write("b.toml", "include = [\"base.toml\"]\n");
  const auto top = files.write("top.toml", "include = [\"a.toml\", \"b.toml\"]\n");
  EXPECT_EQ(load_config(top).run.seed, 1) << "b.toml takes it over from base.toml, after a.toml";
}

TEST(Include, ErrorsNameTheFileAndLineThatAreWrong) {
  Files files;
  files.write("base.toml", kTrain + "[training]\nstep = 1\n");
  const auto top = files.write("top.toml", "include = [\"base.toml\"]\n[optimizer]\nlr = -1\n");
  const std::string error = files.error_of(top);
  EXPECT_NE(error.find("base.toml:4: unknown key training.step"), std::string::npos) << error;
  EXPECT_NE(error.find("top.toml:3: optimizer.lr must be"), std::string::npos) << error;
}

TEST(Include, ACycleIsRefusedAtTheLineThatClosesIt) {
  Files files;
  files.write("b.toml", "# second\ninclude = [\"a.toml\"]\n");
  const auto top = files.write("a.toml", "include = [\"b.toml\"]\n" + kTrain);
  const std::string error = files.error_of(top);
  EXPECT_NE(error.find("b.toml:2: include: files must not include themselves, but a.toml -> "
                       "b.toml -> a.toml does; leave one of these includes out"),
            std::string::npos)
      << error;
}

TEST(Include, AFileThatIncludesItselfThroughALinkIsACycle) {
  Files files;
  const auto top = files.write("a.toml", "include = [\"link.toml\"]\n" + kTrain);
  fs::create_symlink("a.toml", files.folder.path() / "link.toml");
  EXPECT_NE(files.error_of(top).find("must not include themselves"), std::string::npos);
}

TEST(Include, ChainsOfEightAreReadAndLongerOnesRefused) {
  Files files;
  files.write("0.toml", kTrain);
  for (int i = 1; i <= 9; ++i) {
    files.write(std::to_string(i) + ".toml", "include = [\"" + std::to_string(i - 1) + ".toml\"]\n");
  }
  EXPECT_EQ(load_config(files.folder.path() / "8.toml").data.train.size(), 1u);
  const std::string error = files.error_of(files.folder.path() / "9.toml");
  EXPECT_NE(error.find("1.toml:1: include: at most 8 files"), std::string::npos) << error;
}

TEST(Include, OnePathIsAListOfOne) {
  Files files;
  files.write("base.toml", "[training]\nsteps = 7\n");
  EXPECT_EQ(load_config(files.write("c.toml", "include = \"base.toml\"\n" + kTrain)).training.steps, 7);
}

TEST(Include, WhatIsNoListOfFilesIsRefused) {
  Files files;
  const auto error = [&](const std::string& text) {
    return files.error_of(files.write("c.toml", text + kTrain));
  };
  EXPECT_NE(error("include = 3\n").find("include must be a list of files"), std::string::npos);
  EXPECT_NE(error("include = \"\"\n").find("but contains the string \"\""), std::string::npos);
  EXPECT_NE(error("include = [3]\n").find("but contains the integer 3"), std::string::npos);
  const std::string missing = error("include = [\"sub/base.toml\"]\n");
  EXPECT_NE(missing.find("c.toml:1: include: there is no file "), std::string::npos) << missing;
  EXPECT_NE(missing.find("sub/base.toml; correct the path, which is relative"), std::string::npos) << missing;
  EXPECT_NE(error("[run]\ninclude = []\n").find("include must be above all sections"), std::string::npos);
  EXPECT_NE(error("includes = []\n").find("did you mean include?"), std::string::npos);
}

/// A description in a checkpoint, which may come from anybody, must not make a program open files.
TEST(Include, TextsAndStoredConfigsIncludeNothing) {
  Files files;
  files.write("base.toml", kTrain);
  const std::string text = "include = [\"base.toml\"]\n" + kTrain;
  EXPECT_NE(error_of(text).find("include is outside all sections"), std::string::npos);
  const auto stored = files.write("config.toml", text);
  EXPECT_NE(usage_error_of([&] { load_resolved_config(stored); }).find("include is outside"),
            std::string::npos);
}

TEST(Include, TheResolvedConfigStandsAlone) {
  Files files;
  files.write("base.toml", kTrain + "[run]\nseed = 7\n");
  const auto top = files.write("top.toml", "include = [\"base.toml\"]\n");
  const TracedConfig traced = trace_config(top);
  const auto resolved = files.write("run/config.toml", to_toml(traced.config));
  EXPECT_EQ(util::read_file(resolved).find("include"), std::string::npos);
  EXPECT_EQ(load_resolved_config(resolved).run.seed, 7);
}

}  // namespace
}  // namespace fsdp::config
