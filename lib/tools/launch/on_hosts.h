#pragma once

// fsdp-launch --hosts a,b: starts a launcher on each host, over ssh, by scripts/launch_ssh.

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::launch {

/// Launchers on several hosts, each of which is a node of the run.
struct LaunchOnHosts {
  std::vector<std::string> hosts{};    ///< hosts in the order of the nodes; empty: this host alone
  std::vector<std::string> options{};  ///< options of fsdp-launch on each host
};

/// The names in a list such as "a,somebody@b". Throws Error(kUsage) for an empty name and for a name that ssh
/// would take for an option.
std::vector<std::string> hosts_from_text(const std::string& text);

/// The words of a command line before the program, without --hosts and its value. `words` begins after the
/// program's name.
std::vector<std::string> options_of_hosts(std::vector<std::string> words);

/// The script that starts the launchers, for the launcher `program`: of its checkout or its installation.
/// Throws Error(kUsage) if there is none.
std::filesystem::path launch_script(const std::filesystem::path& program);

/// The command that starts the launchers on the hosts.
std::vector<std::string> command_on_hosts(const std::filesystem::path& script, const LaunchOnHosts& launch,
                                          const std::vector<std::string>& program);

/// Replaces this process by that command. Throws Error(kUsage) if it cannot be run.
[[noreturn]] void launch_on_hosts(const LaunchOnHosts& launch, const std::vector<std::string>& program);

}  // namespace fsdp::launch
