// What libraries read from the environment when the programs that compute start.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Environment = std::map<std::string, std::optional<std::string>>;

/// What libgomp says that it has read when the program starts.
std::string libgomp_settings(const std::string& name, Environment environment) {
  environment.emplace("OMP_WAIT_POLICY", std::nullopt);
  environment.emplace("GOMP_SPINCOUNT", std::nullopt);
  environment["OMP_DISPLAY_ENV"] = "VERBOSE";
  const auto result = testing::run({program(name), "--version"}, {.env = environment});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.err;
}

std::string environment_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Spinning, IsShort) {
  for (const char* name : {"fsdp-train", "fsdp-generate"}) {
    EXPECT_THAT(libgomp_settings(name, {}), HasSubstr("GOMP_SPINCOUNT = '1000'")) << name;
  }
}

TEST(Spinning, IsAsTheUserHasSetIt) {
  EXPECT_THAT(libgomp_settings("fsdp-train", {{"GOMP_SPINCOUNT", "77"}}), HasSubstr("GOMP_SPINCOUNT = '77'"));
  EXPECT_THAT(libgomp_settings("fsdp-train", {{"OMP_WAIT_POLICY", "active"}}),
              Not(HasSubstr("GOMP_SPINCOUNT = '1000'")));
}

/// What a program of that name finds in GLIBC_TUNABLES under the launcher.
std::string tunables_of(const std::string& name) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / name) << "#!/bin/sh\necho \"tunables: $GLIBC_TUNABLES\"\n";
  std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
  const auto result =
      testing::run({program("fsdp-launch"), "--nproc-per-node", "1", "--", (folder / name).string()},
                   {.env = {{"GLIBC_TUNABLES", std::nullopt}}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(EarlyEnvironment, ComesFromTheLauncherForProgramsThatWouldRestart) {
  EXPECT_THAT(tunables_of("fsdp-train"), HasSubstr("tunables: glibc.malloc.tcache_count=512"));
  EXPECT_THAT(tunables_of("python"), HasSubstr("tunables: \n"));
}

TEST(EarlyEnvironment, LeavesNameArgumentsInputAndProcessNumber) {
  testing::TemporaryFolder folder;
  const auto result = testing::run(
      {"sh", "-c", "echo $$; exec \"$@\"", "sh", program("fsdp-generate"), (folder / "no model").string(),
       "-"},
      {.env = {{"GOMP_SPINCOUNT", std::nullopt}, {"OMP_WAIT_POLICY", std::nullopt}}, .stdin_text = "text"});
  EXPECT_THAT(result.err, HasSubstr("no model"));
  // The process that has started itself again is still the one that was started.
  testing::write_token_file(folder / "train.bin", 2000, 17);
  std::ofstream(folder / "config.toml") << kOddModel;
  testing::RunningProgram run({program("fsdp-train"), (folder / "config.toml").string(),
                               "training.steps=100000", "run.output_dir=" + (folder / "out").string(),
                               "data.train=[\"" + (folder / "train.bin").string() + "\"]"},
                              {.env = {{"GOMP_SPINCOUNT", std::nullopt}, {"OMP_WAIT_POLICY", std::nullopt}}});
  ASSERT_TRUE(run.wait_for("step 1/"));
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(run.pid()) + "/comm"), name);
  EXPECT_EQ(name, "fsdp-train");
  EXPECT_THAT(environment_of(run.pid()), HasSubstr("GLIBC_TUNABLES=glibc.malloc.tcache_count=512"));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().exit_code, 75);
}

}  // namespace
}  // namespace fsdp::e2e
