#include "checkpoint/model_files.h"

#include <system_error>
#include <vector>

#include "util/error.h"
#include "util/file.h"
#include "util/name_patterns.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::ErrorKind;
using util::fail;

namespace {

/// Larger files are not a tokenizer, whatever their name.
constexpr uintmax_t kLargestBytes = 500'000'000;

}  // namespace

bool is_tokenizer_file(const std::string& name) {
  static const std::vector<std::string> patterns = {
      "tokenizer*.json",   "tokenizer*.model*", "special_tokens_map.json",
      "added_tokens.json", "vocab.json",        "vocab.txt",
      "vocab.bpe",         "merges.txt",        "encoder.json",
      "spiece.model",      "tekken.json",       "chat_template*"};
  return util::matches_any(name, patterns);
}

ModelFiles model_files_in(const fs::path& folder) {
  ModelFiles files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!is_tokenizer_file(name) && name != "generation_config.json") continue;
    std::error_code ignored;
    // Links count: the hub's cache consists of them.
    if (!fs::is_regular_file(at->path(), ignored) || at->file_size(ignored) > kLargestBytes) continue;
    files.emplace(name, at->path());
  }
  return files;
}

fs::path kept_model_files(const fs::path& checkpoint_folder) {
  fs::path folder = fs::absolute(checkpoint_folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // of a path that ends in a slash
  std::error_code error;
  // A link such as RUN/best lies in the run's folder, too.
  for (const fs::path& around : {folder, folder.parent_path()}) {
    if (fs::is_directory(around / kModelFilesName, error)) return around / kModelFilesName;
  }
  return {};
}

void copy_model_files(const ModelFiles& files, const fs::path& folder) {
  if (files.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot make the folder ", folder.string(), ": ", error.message());
  for (const auto& [name, path] : files) {
    util::write_file_atomically(folder / name, util::read_file(path));
  }
}

}  // namespace fsdp::checkpoint
