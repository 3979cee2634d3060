#pragma once

// A program's version, and the parts of its help and man page that are not options.

#include <functional>
#include <string>
#include <vector>

namespace fsdp::cli {

struct Example {
  std::string about;    ///< one line without a full stop; may be empty
  std::string command;  ///< command as a user types it
};

/// An argument of the form name=value, such as a key of the config.
struct Word {
  std::string name;
  std::string meaning;              ///< one line
  std::vector<std::string> values;  ///< choices; empty: any value
};

struct Page {
  std::string name;     ///< name of the program
  std::string summary;  ///< purpose, in the NAME line of a man page
  std::vector<Example> examples;
  /// Words of the positional argument "overrides" of the program or of its commands.
  std::vector<Word> words;
  /// Returns what to write instead of a name that other programs have for a word, and its value, which may be
  /// empty: "write optimizer.lr=0.1". Returns an empty text for other names. May be null.
  std::function<std::string(const std::string& name, const std::string& value)> answer_to_foreign_word = {};
  bool runs_program = false;  ///< whether the words after "--" are the command line of another program
};

/// Returns the text of --version: the program's version and commit, if known, libtorch's, CUDA's and NCCL's.
std::string version_text(const std::string& program);

/// Returns NCCL's version; "" if the program is built without NCCL.
std::string nccl_version();

}  // namespace fsdp::cli
