#pragma once

// The commands of fsdp-data: each adds its options to the command line and, if the command line names it,
// sets the function to run.

#include <CLI/CLI.hpp>
#include <functional>

namespace fsdp::apps {

using Command = std::function<void()>;

void add_tokenize(CLI::App& app, Command& run);
void add_train_tokenizer(CLI::App& app, Command& run);
void add_inspect(CLI::App& app, Command& run);
void add_convert(CLI::App& app, Command& run);
void add_decode(CLI::App& app, Command& run);

}  // namespace fsdp::apps
