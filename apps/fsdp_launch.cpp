// fsdp-launch: starts the processes of a training run on this node and watches them, as torchrun does.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "launch/options.h"
#include "launch/supervisor.h"
#include "util/error.h"
#include "util/text.h"

namespace {

using fsdp::launch::LaunchOptions;
using fsdp::util::ErrorKind;

/// "--log-dir" -> "--log-dir,--log_dir": torchrun takes both spellings.
std::string spellings(const std::string& name) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? name : name + "," + other;
}

/// What the arguments left over by CLI11 say: [--] PROGRAM ARGUMENTS.
std::vector<std::string> program_of(std::vector<std::string> rest, const CLI::App& app) {
  if (!rest.empty() && rest.front() == "--") {
    rest.erase(rest.begin());
  } else if (!rest.empty() && rest.front().starts_with("-")) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) known.push_back("--" + option->get_lnames().front());
    const std::string name = rest.front().substr(0, rest.front().find('='));
    const std::string near = fsdp::util::nearest(name, known);
    fsdp::util::fail(ErrorKind::kUsage, "unknown option ", name, near.empty() ? "" : "; did you mean " + near,
                     near.empty() ? "; --help lists the options" : "?");
  }
  return rest;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] {
    LaunchOptions options;
    std::string workers = "1", nodes = "1";
    bool standalone = false;

    CLI::App app(
        "Starts PROGRAM in several processes on this node, with the environment that torchrun sets, and\n"
        "watches them: the first that fails ends the run. Options come before PROGRAM; each can also be set\n"
        "by torchrun's environment variable for it.",
        "fsdp-launch");
    app.footer("Example: fsdp-launch --nproc-per-node 2 -- fsdp-train config.toml");
    app.prefix_command();
    const auto add = [&](const std::string& name, auto& value, const std::string& help) {
      std::string variable = "PET_" + name.substr(2);
      std::replace(variable.begin(), variable.end(), '-', '_');
      std::transform(variable.begin(), variable.end(), variable.begin(), ::toupper);
      return app.add_option(spellings(name), value, help)->envname(variable)->capture_default_str();
    };
    add("--nproc-per-node", workers, "processes to start; cpu or auto: one for each core");
    add("--nnodes", nodes, "nodes of the run; only 1 for now");
    add("--node-rank", options.node_rank, "this node's number");
    add("--master-addr", options.master_addr, "address of the node of rank 0");
    add("--master-port", options.master_port, "port that rank 0 listens on; 0: one that is free");
    add("--log-dir", options.log_dir, "folder for a file a rank, rank<R>.log, that keeps its output");
    add("--shutdown-timeout", options.shutdown_timeout_seconds,
        "seconds that workers have to end after SIGTERM before SIGKILL");
    app.add_flag("--standalone", standalone, "one node, whatever PET_MASTER_ADDR and its like say")
        ->envname("PET_STANDALONE");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app.exit(error);  // --help
      fsdp::util::fail(ErrorKind::kUsage, error.what(), "; --help lists the options");
    }

    options.program = program_of(app.remaining(), app);
    options.nproc_per_node = fsdp::launch::workers_from_text(workers);
    options.nnodes = fsdp::launch::nodes_from_text(nodes);
    if (standalone) {
      options.master_addr = LaunchOptions().master_addr;
      options.master_port = 0;
    }
    return fsdp::launch::launch(options);
  });
}
