#pragma once

// A program's description of itself beside its options, and its version.

#include <string>
#include <vector>

namespace fsdp::cli {

struct Example {
  std::string about;    ///< one line without a full stop; may be empty
  std::string command;  ///< as a user types it
};

/// A word name=value that a program takes, such as a key of the config.
struct Word {
  std::string name;
  std::string meaning;              ///< one line
  std::vector<std::string> values;  ///< the choices; empty: any value
};

struct Page {
  std::string name;     ///< of the program
  std::string summary;  ///< what it does, in the NAME line of a man page
  std::vector<Example> examples;
  /// For the positional argument "overrides" of the program or of its commands.
  std::vector<Word> words;
  bool runs_program = false;  ///< whether the words after "--" are the command line of another program
};

/// For --version: the version of the program with its commit, if known, and of libtorch, CUDA and NCCL.
std::string version_text(const std::string& program);

/// Empty if the program is built without NCCL.
std::string nccl_version();

}  // namespace fsdp::cli
