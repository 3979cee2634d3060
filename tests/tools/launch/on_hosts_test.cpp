// fsdp-launch --hosts, with a command in place of ssh that runs everything on this machine.

#include "tools/launch/on_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "support/free_port.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ProgramResult;

std::string refusal_of_hosts(const std::string& text) {
  try {
    hosts_from_text(text);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(OnHosts, ReadsNamesOfHosts) {
  EXPECT_THAT(hosts_from_text("a"), ElementsAre("a"));
  EXPECT_THAT(hosts_from_text("localhost,me@b,10.0.0.2"), ElementsAre("localhost", "me@b", "10.0.0.2"));
}

TEST(OnHosts, RefusesNamesThatSshCannotReach) {
  for (const char* text : {"", ",", "a,", ",a", "a,,b"}) {
    EXPECT_THAT(refusal_of_hosts(text), HasSubstr("remove the comma beside which there is no name")) << text;
  }
  EXPECT_THAT(refusal_of_hosts("a,-oProxyCommand=x"), HasSubstr("the name -oProxyCommand=x is none"));
  EXPECT_THAT(refusal_of_hosts("a, b"), HasSubstr("--hosts must be names of hosts"));
}

TEST(OnHosts, PassOnAllOptionsButTheHosts) {
  EXPECT_THAT(options_of_hosts({"--hosts", "a,b", "--nproc-per-node", "2", "--"}),
              ElementsAre("--nproc-per-node", "2"));
  EXPECT_THAT(options_of_hosts({"--master-addr=x", "--hosts=a,b"}), ElementsAre("--master-addr=x"));
  const LaunchOnHosts launch{.hosts = {"a", "b"}, .options = {"--master-addr", "x"}};
  EXPECT_THAT(command_on_hosts("/s/launch_ssh", launch, {"echo", "--hosts"}),
              ElementsAre("/s/launch_ssh", "--hosts", "a,b", "--master-addr", "x", "--", "echo", "--hosts"));
}

TEST(OnHosts, FindTheScriptOfACheckoutOrAnInstallation) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path program = folder / "build/bin/fsdp-launch";
  EXPECT_THROW(launch_script(program), util::Error);
  std::filesystem::create_directories(folder / "scripts");
  folder.write("scripts/launch_ssh", "");
  EXPECT_EQ(launch_script(program), folder / "scripts/launch_ssh");
  std::filesystem::create_directories(folder / "build/share/fsdp/scripts");
  folder.write("build/share/fsdp/scripts/launch_ssh", "");
  EXPECT_EQ(launch_script(program), folder / "build/share/fsdp/scripts/launch_ssh");
}

class HostsOfFsdpLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    // Writes which hosts it was asked for.
    const auto ssh = folder_.write("ssh", "#!/bin/sh\necho \"$1\" >>" + (folder_ / "asked").string() +
                                              "\nshift\nexec env --default-signal sh -c \"$*\"\n");
    std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  }

  ProgramResult launch(std::vector<std::string> options, const std::string& script = "true") const {
    options.insert(options.begin(), testing::program_path("fsdp-launch"));
    options.insert(options.end(),
                   {"--master-port", std::to_string(testing::free_port()), "--", "/bin/sh", "-c", script});
    return testing::run(options, {.env = {{"FSDP_SSH", (folder_ / "ssh").string()}}});
  }

  testing::TemporaryFolder folder_;
};

TEST_F(HostsOfFsdpLaunch, AreReachedOverSshButForThisMachine) {
  const ProgramResult result =
      launch({"--hosts", "localhost,127.0.0.1", "--master-addr", "127.0.0.1", "--nproc-per-node", "2"},
             "echo $RANK of $WORLD_SIZE towards $MASTER_ADDR");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[localhost] [rank1] 1 of 4 towards 127.0.0.1\n"),
                                HasSubstr("[127.0.0.1] [rank3] 3 of 4 towards 127.0.0.1\n")));
  EXPECT_EQ(folder_.read("asked"), "127.0.0.1\n");
}

TEST_F(HostsOfFsdpLaunch, EndWithTheCodeOfTheRun) {
  EXPECT_EQ(launch({"--hosts=127.0.0.1,localhost"}, "[ $RANK = 1 ] && exit 9; exec sleep 100").exit_code, 9);
}

TEST_F(HostsOfFsdpLaunch, MustReachTheFirstOneByItsName) {
  const ProgramResult result = launch({"--hosts", "localhost,elsewhere"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("give its address for elsewhere by --master-addr"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "asked"));
}

TEST_F(HostsOfFsdpLaunch, HaveNoOtherNumberOfNodes) {
  const ProgramResult result = launch({"--hosts", "127.0.0.1,localhost", "--nnodes", "2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--hosts"), HasSubstr("--nnodes")));
}

TEST_F(HostsOfFsdpLaunch, NeedAProgram) {
  const ProgramResult result = testing::run({testing::program_path("fsdp-launch"), "--hosts", "127.0.0.1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is no program to start"));
}

}  // namespace
}  // namespace fsdp::launch
