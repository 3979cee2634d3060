#include "tools/launch/on_hosts.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/launch/options.h"

namespace fsdp::launch {
namespace {

constexpr const char* kOption = "--hosts";

}  // namespace

std::vector<std::string> hosts_from_text(const std::string& text) {
  std::vector<std::string> hosts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    hosts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
    const std::string& host = hosts.back();
    if (!host.empty() && host.front() != '-' && host.find_first_of(" \t\n#") == std::string::npos) continue;
    fail(ErrorKind::kUsage, kOption, " must be names of hosts with commas between them, such as ",
         "localhost,somebody@host1, but is ", util::shell_word(text), "; ",
         host.empty() ? "remove the comma beside which there is no name"
                      : concat("the name ", util::shell_word(host), " is none that ssh could reach"));
  }
  return hosts;
}

std::vector<std::string> options_of_hosts(std::vector<std::string> words) {
  if (!words.empty() && words.back() == "--") words.pop_back();
  std::vector<std::string> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kOption) {
      ++i;  // the value
    } else if (!words[i].starts_with(concat(kOption, "="))) {
      kept.push_back(words[i]);
    }
  }
  return kept;
}

std::filesystem::path launch_script(const std::filesystem::path& program) {
  const std::filesystem::path bin = program.parent_path();
  const std::filesystem::path installed = bin.parent_path() / "share/fsdp/scripts/launch_ssh";
  const std::filesystem::path in_checkout = bin.parent_path().parent_path() / "scripts/launch_ssh";
  std::error_code error;
  for (const std::filesystem::path& script : {installed, in_checkout}) {
    if (std::filesystem::is_regular_file(script, error)) return script;
  }
  fail(ErrorKind::kUsage, kOption, " needs the script launch_ssh, but it is neither ", installed.string(),
       " nor ", in_checkout.string(), "; install the toolkit again, or start fsdp-launch on each host");
}

std::vector<std::string> command_on_hosts(const std::filesystem::path& script, const LaunchOnHosts& launch,
                                          const std::vector<std::string>& program) {
  std::vector<std::string> command{script.string(), kOption, util::join(launch.hosts, ",")};
  command.insert(command.end(), launch.options.begin(), launch.options.end());
  command.emplace_back("--");
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

void launch_on_hosts(const LaunchOnHosts& launch, const std::vector<std::string>& program) {
  check_program(program);
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> words = command_on_hosts(launch_script(own), launch, program);
  ::setenv("FSDP_LAUNCH", own.c_str(), /*overwrite=*/0);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv.front(), argv.data());
  fail(ErrorKind::kUsage, "cannot run ", words.front(), ": ", util::errno_text(errno),
       "; it is a script for bash");
}

}  // namespace fsdp::launch
