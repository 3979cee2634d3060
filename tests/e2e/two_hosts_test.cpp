// Training on two hosts in different homes, by the recipe of docs/two_hosts.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "e2e/programs.h"
#include "support/free_port.h"
#include "support/home_networks.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

using ::testing::HasSubstr;
using testing::HomeNetworks;
using testing::PacketWatch;
using testing::ProgramResult;
using testing::RunningProgram;
using testing::RunOptions;

constexpr int kUdpPort = 51820;
constexpr const char* kHost0 = "10.177.0.1";
constexpr const char* kHost1 = "10.177.0.2";

ProgramResult shell(const std::string& script) { return testing::run({"/bin/sh", "-c", script}); }

std::map<int64_t, double> losses_of(const std::filesystem::path& run) {
  std::map<int64_t, double> losses;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_object() && entry.contains("loss")) losses[entry.at("step")] = entry.at("loss");
  }
  return losses;
}

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 4000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// fsdp-train with the test's config.
  std::vector<std::string> training(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command{program("fsdp-train"), (folder_ / "config.toml").string(),
                                     "run.output_dir=" + (folder_ / run).string(),
                                     "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }

  testing::TemporaryFolder folder_;
};

/// Two homes whose hosts are connected by scripts/recipes/wireguard_pair, and an SSH server on host 1.
class TwoHomes : public TwoHosts {
 protected:
  void SetUp() override {
    TwoHosts::SetUp();
    if (const std::string why = HomeNetworks::missing(); !why.empty()) GTEST_SKIP() << why;
    const ProgramResult tools = shell(
        "test -e /dev/net/tun && test -x /usr/sbin/sshd && command -v wg && command -v wg-quick && "
        "command -v ssh-keygen && { command -v wireguard-go || test -e /sys/module/wireguard; }");
    if (tools.exit_code != 0) {
      GTEST_SKIP() << "no WireGuard or no sshd here (Debian: wireguard-tools, wireguard-go, openssh-server)";
    }
    homes_.emplace();
    homes_->open_udp_port(0, kUdpPort);
    connect_hosts();
    start_sshd();
  }

  void TearDown() override {
    sshd_.reset();
    // Ends wireguard-go too, which would keep the namespace.
    for (int host : {0, 1}) {
      if (homes_) testing::run(homes_->on(host, {"ip", "link", "delete", interface(host)}));
    }
    if (made_run_folder_) std::filesystem::remove("/run/sshd");
  }

  /// Sockets of wireguard-go are named by interface alone, in all namespaces.
  static std::string interface(int host) {
    return "fsdp" + std::to_string(host) + "t" + std::to_string(::getpid() % 1000000);
  }

  std::vector<std::string> on(int host, const std::vector<std::string>& argv) const {
    return homes_->on(host, argv);
  }

  std::optional<HomeNetworks> homes_;

 private:
  void connect_hosts() {
    const ProgramResult made = testing::run({testing::source_folder() + "/scripts/recipes/wireguard_pair",
                                             HomeNetworks::address(0) + ":" + std::to_string(kUdpPort),
                                             (folder_ / "pair").string()});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    for (int host : {0, 1}) {
      const auto file = folder_ / "pair" / (interface(host) + ".conf");
      std::filesystem::rename(folder_ / "pair" / ("fsdp" + std::to_string(host) + ".conf"), file);
      EXPECT_EQ(std::filesystem::status(file).permissions(),
                std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
      const ProgramResult up = testing::run(on(host, {"wg-quick", "up", file.string()}));
      ASSERT_EQ(up.exit_code, 0) << up.err;
    }
  }

  void start_sshd() {
    made_run_folder_ = std::filesystem::create_directory("/run/sshd");  // root's sshd wants it
    const std::string folder = folder_.path().string();
    for (const char* key : {"host_key", "user_key"}) {
      ASSERT_EQ(testing::run({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", (folder_ / key).string()})
                    .exit_code,
                0);
    }
    folder_.write("authorized_keys", folder_.read("user_key.pub"));
    folder_.write("sshd_config", std::string("ListenAddress ") + kHost1 + "\nHostKey " + folder +
                                     "/host_key\nAuthorizedKeysFile " + folder +
                                     "/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n");
    folder_.write("ssh_config", "Host *\n  IdentityFile " + folder +
                                    "/user_key\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  "
                                    "UserKnownHostsFile /dev/null\n  LogLevel ERROR\n  BatchMode yes\n");
    sshd_ = std::make_unique<RunningProgram>(
        on(1, {"/usr/sbin/sshd", "-D", "-f", (folder_ / "sshd_config").string(), "-E",
               (folder_ / "log").string()}),
        RunOptions{.timeout_seconds = 300});
    const auto answers = [&] {
      return testing::run(on(0, {"ssh", "-F", (folder_ / "ssh_config").string(), kHost1, "true"}))
                 .exit_code == 0;
    };
    ASSERT_TRUE(testing::eventually([&] { return answers(); })) << folder_.read("log");
  }

  bool made_run_folder_ = false;
  std::unique_ptr<RunningProgram> sshd_;
};

TEST_F(TwoHomes, TrainOverOneOpenUdpPortAndNothingIsReadableOnTheWay) {
  std::vector<std::string> command{program("fsdp-launch"), "--nproc-per-node", "2", "--"};
  for (const std::string& word : training("single")) command.push_back(word);
  ASSERT_EQ(testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}}).exit_code, 0);

  const std::string name = "the-name-of-this-run";  // launchers send it to each other
  const PacketWatch outside(homes_->internet(), HomeNetworks::kTowardsRouter0, name, kUdpPort);
  const PacketWatch inside(homes_->home(0), interface(0), name);
  const std::vector<std::string> words = training("homes");
  command = {program("fsdp-launch"),
             "--hosts",
             std::string("localhost,") + kHost1,
             "--master-addr",
             kHost0,
             "--rdzv-id",
             name,
             "--"};
  command.insert(command.end(), words.begin(), words.end());
  const ProgramResult result = testing::run(
      on(0, command),
      {.env = {{"FSDP_SSH", "ssh -F " + (folder_ / "ssh_config").string()}, {"OMP_NUM_THREADS", "1"}},
       .timeout_seconds = 120});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("2 over gloo"));

  const auto expected = losses_of(folder_ / "single"), found = losses_of(folder_ / "homes");
  ASSERT_EQ(found.size(), 20u);
  for (const auto& [step, loss] : expected) EXPECT_NEAR(found.at(step), loss, 1e-5 * loss) << step;

  EXPECT_TRUE(inside.seen_text()) << "the test knows no text that is sent";
  EXPECT_FALSE(outside.seen_text());
  EXPECT_EQ(outside.other_packets(), 0);
  EXPECT_GT(outside.bytes(), inside.bytes()) << "all went that way, in packets of WireGuard";
}

TEST_F(TwoHosts, SaveWholeCheckpointsWithoutACommonFolder) {
  // Host 1 has another folder at the path of the run.
  const ProgramResult can = testing::run({"unshare", "--mount", "true"});
  if (can.exit_code != 0) GTEST_SKIP() << "no mount namespaces here: " << can.err;
  const auto run_on_both = [&](const std::vector<std::string>& more, const std::string& before_on_host_1) {
    std::vector<std::string> command = training("run", more);
    command.emplace_back("comm.backend=gloo");
    const std::string port = std::to_string(testing::free_port());
    std::vector<std::unique_ptr<RunningProgram>> ranks;
    for (int rank : {0, 1}) {
      std::vector<std::string> words = command;
      if (rank == 1) {
        words = {"unshare",
                 "--mount",
                 "sh",
                 "-c",
                 "mkdir -p \"$0\" && cp -r \"$0\" \"$0.sent\" && mount -t tmpfs none \"$0\" && " +
                     before_on_host_1 + " && exec \"$@\"",
                 (folder_ / "run").string()};
        words.insert(words.end(), command.begin(), command.end());
      }
      ranks.push_back(
          std::make_unique<RunningProgram>(words, RunOptions{.env = {{"RANK", std::to_string(rank)},
                                                                     {"LOCAL_RANK", "0"},
                                                                     {"WORLD_SIZE", "2"},
                                                                     {"LOCAL_WORLD_SIZE", "1"},
                                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                                     {"MASTER_PORT", port},
                                                                     {"OMP_NUM_THREADS", "1"}}}));
    }
    ranks[1]->wait();
    return ranks[0]->wait();
  };
  ProgramResult result = run_on_both({"training.steps=4"}, "true");
  EXPECT_EQ(result.exit_code, static_cast<int>(ErrorKind::kIo)) << "shards need a common folder";
  EXPECT_THAT(result.err, HasSubstr("No such file or directory (on rank 1)"));
  std::filesystem::remove_all(folder_ / "run");

  result = run_on_both({"training.steps=4", "checkpoint.kind=full"}, "true");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::filesystem::remove_all(folder_ / "run.sent");
  result = run_on_both({"training.steps=6", "checkpoint.kind=full"}, "cp -r \"$0.sent/.\" \"$0\"");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("resuming from"));
}

}  // namespace
}  // namespace fsdp::e2e
