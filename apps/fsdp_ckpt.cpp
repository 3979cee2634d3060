// fsdp-ckpt: looks at, checks, compares and converts checkpoints.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "ckpt_commands.h"
#include "util/error.h"

int main(int argc, char** argv) {
  using namespace fsdp;
  return util::run_guarded([&] {
    CLI::App app("Looks at, checks, compares and converts checkpoints.", "fsdp-ckpt");
    app.require_subcommand(1);
    const auto commands = apps::add_ckpt_commands(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : static_cast<int>(util::ErrorKind::kUsage);
    }
    auto chosen = std::find_if(commands.begin(), commands.end(),
                               [](const apps::CkptCommand& command) { return command.parser->parsed(); });
    FSDP_CHECK(chosen != commands.end());
    int code = chosen->run();
    // A result that could not be printed (a full disk behind a redirection) is a failure.
    if (!std::cout.flush()) util::fail(util::ErrorKind::kIo, "cannot write to standard output");
    return code;
  });
}
