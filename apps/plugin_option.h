#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/cli/program.h"

namespace fsdp::apps {

/// Adds --plugin, which may be given several times. `beside`: text of --help about the plug-ins that are
/// loaded without it.
inline void add_plugin_option(CLI::App& app, std::vector<std::string>& plugins, const std::string& beside) {
  app.add_option(
         "--plugin", plugins,
         "load this plug-in, a shared library that adds models, losses and so on (<fsdp/plugin.h>)" + beside)
      ->allow_extra_args(false)
      ->check(cli::not_empty());
}

}  // namespace fsdp::apps
