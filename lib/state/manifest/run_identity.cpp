#include "state/manifest/run_identity.h"

#include "base/util/error.h"
#include "base/util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr size_t kIdLength = 16;

bool is_run_id(const std::string& text) {
  return text.size() == kIdLength && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// The id in a small file. Nothing if there is no regular file of that name, "" if the file holds no id.
std::optional<std::string> id_in(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return std::nullopt;
  const auto bytes = fs::file_size(path, error);
  if (error || bytes != kIdLength + 1) return "";
  std::string text = util::read_file(path);
  text.resize(kIdLength);
  return is_run_id(text) ? text : "";
}

}  // namespace

std::string run_of(const nlohmann::json& training) {
  if (!training.is_object()) return "";
  const auto run = training.find("run");
  if (run == training.end() || !run->is_string()) return "";
  const auto id = run->get<std::string>();
  return is_run_id(id) ? id : "";
}

std::string recorded_run(const fs::path& root) { return id_in(root / kRunName).value_or(""); }

void record_run(const fs::path& root, const std::string& run) {
  util::write_file_atomically(root / kRunName, run + "\n");
}

void mark_unfinished(const fs::path& folder, const std::string& run) {
  util::write_file_atomically(folder / kUnfinishedName, run + "\n");
}

void unmark_unfinished(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / kUnfinishedName, error);
  if (error) {
    fail(ErrorKind::kIo, "cannot remove ", (folder / kUnfinishedName).string(), ": ", error.message());
  }
}

std::optional<std::string> run_that_fills(const fs::path& folder) { return id_in(folder / kUnfinishedName); }

}  // namespace fsdp::checkpoint
