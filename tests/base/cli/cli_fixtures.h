#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/cli/page.h"

namespace fsdp::cli {

/// A program with one of everything that completions and pages speak of.
inline std::unique_ptr<CLI::App> sample_app() {
  auto app = std::make_unique<CLI::App>("Does it. It's quick.", "my-tool");
  static std::string text;
  static std::vector<std::string> texts;
  static int count = 0;
  app->add_option("config", text)->required()->description("a file");
  app->add_option("overrides", texts)->description("section.key=value");
  app->add_flag("-q,--quiet")->description("say less: it's calm; nothing else");
  app->add_option("--log-dir,--log_dir", text)->description(".begins with a dot");
  app->add_option("--format", text)->check(CLI::IsMember({"json", "text"}))->description("of the result");
  app->add_option("--count", count)->description("a number");
  app->add_option("--hidden", text)->group("");
  CLI::App* init = app->add_subcommand("init", "write a config");
  init->add_option("preset", text)->check(CLI::IsMember({"small", "large"}))->description("which");
  init->add_option("--output", text)->description("a file");
  return app;
}

inline Page sample_page() {
  return {.name = "my-tool",
          .summary = "does it",
          .examples = {{"the usual way", "my-tool config.toml"}, {"", "my-tool init small"}},
          .words = {{"run.name", "name of the run", {}},
                    {"run.mode", "how it runs", {"fast", "slow"}},
                    {"model.size", "how large", {}}}};
}

}  // namespace fsdp::cli
