#pragma once

// What a program says of itself beside its options.

#include <string>
#include <vector>

namespace fsdp::cli {

struct Example {
  std::string about;    ///< one line without a full stop; may be empty
  std::string command;  ///< as a user types it
};

/// A word that a program takes as name=value, such as a key of the config.
struct Word {
  std::string name;
  std::string meaning;              ///< one line
  std::vector<std::string> values;  ///< those to choose from; empty: any
};

struct Page {
  std::string name;     ///< of the program
  std::string summary;  ///< what it does, as a man page has it behind the name
  std::vector<Example> examples;
  /// What the positional argument "overrides" of the program or of one of its commands takes.
  std::vector<Word> words;
  bool runs_program = false;  ///< whether what follows "--" is the command line of another program
};

}  // namespace fsdp::cli
