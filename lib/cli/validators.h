#pragma once

// What values of options are checked by, with the sentences of util/error.h in place of CLI11's.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::cli {

/// Of an option that names a file or folder. An empty word is what a shell makes of a variable that is not
/// set, and is not the same as an option that is not given.
CLI::Validator not_empty();

/// The only values. Completions offer them.
CLI::Validator one_of(const std::vector<std::string>& choices);

/// A finite number, which for an integer option CLI11 reads as an integer.
CLI::Validator at_least(double min);
CLI::Validator above(double min);
CLI::Validator between(int64_t min, int64_t max);

}  // namespace fsdp::cli
