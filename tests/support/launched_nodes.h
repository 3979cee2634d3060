#pragma once

// Several launchers of one run, on this machine: each is a node.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "support/free_port.h"
#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp::testing {

/// The launchers of one run.
class LaunchedNodes : public ::testing::Test {
 public:
  using Options = std::vector<std::string>;

 protected:
  RunningProgram& start(const Options& options, const std::string& script, RunOptions run = {}) {
    std::vector<std::string> argv{program_path("fsdp-launch"), "--monitor-interval", "0.1"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
    programs_.push_back(std::make_unique<RunningProgram>(argv, std::move(run)));
    return *programs_.back();
  }
  RunningProgram& start_static(int node, int nodes, const std::string& script, Options more = {},
                               RunOptions run = {}) {
    Options options{"--nnodes",           std::to_string(nodes), "--node-rank",
                    std::to_string(node), "--master-port",       std::to_string(port_)};
    options.insert(options.end(), more.begin(), more.end());
    return start(options, script, std::move(run));
  }
  RunningProgram& start_elastic(const std::string& nodes, const std::string& script, Options more = {},
                                RunOptions run = {}) {
    Options options{
        "--nnodes",  nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:" + std::to_string(port_),
        "--rdzv-id", "run7"};
    options.insert(options.end(), more.begin(), more.end());
    return start(options, script, std::move(run));
  }
  /// A connection to the port where the nodes meet.
  int connect_to_port() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_TRUE(eventually(
        [&] { return ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0; }));
    return fd;
  }
  static pid_t printed_pid(const std::string& text) {
    return std::stoi(text.substr(text.find("pid ") + std::string("pid ").size()));
  }

  const int port_ = free_port();
  std::vector<std::unique_ptr<RunningProgram>> programs_;
};

}  // namespace fsdp::testing
