#include "tools/launch/run_folder.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/regular_file.h"

namespace fsdp::launch {

RunFolder::RunFolder(const std::string& parent, const std::string& run_id, bool kept) : kept_(kept) {
  std::error_code error;
  const std::filesystem::path base =
      parent.empty() ? std::filesystem::temp_directory_path(error) : std::filesystem::path(parent);
  if (!parent.empty()) util::make_writable_folder(parent);
  std::string name = run_id;
  std::replace(name.begin(), name.end(), '/', '_');
  std::string pattern = (base / (name + "_XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail(ErrorKind::kIo, "cannot create a folder in ", base.string(), ": ", util::errno_text(errno),
         parent.empty() ? "; set TMPDIR to a folder for temporary files" : "; choose another --log-dir");
  }
  path_ = pattern;
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path RunFolder::of_worker(int restarts, int local_rank) const {
  const std::filesystem::path folder = path_ / concat("attempt_", restarts) / std::to_string(local_rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot create ", folder.string(), ": ", error.message());
  return folder;
}

std::filesystem::path error_file_in(const std::filesystem::path& worker_folder) {
  return worker_folder / "error.json";
}

std::filesystem::path activity_file_in(const std::filesystem::path& worker_folder) {
  return worker_folder / "activity.json";
}

namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  constexpr size_t kLongestBytes = 1 << 20;  // a traceback may be long, but the file is untrusted
  const std::string text = util::read_beginning(path, kLongestBytes);
  constexpr util::JsonLimits kLimits{.deepest_level = 16, .unique_keys = false};
  try {
    return util::parse_json(text, kLimits);
  } catch (const util::JsonError&) {
    return nullptr;
  }
}

}  // namespace

Standing read_activity_file(const std::filesystem::path& path) { return standing_from(read_json(path)); }

std::string read_error_file(const std::filesystem::path& path) {
  const nlohmann::json content = read_json(path);
  if (!content.is_object() || !content.contains("message")) return "";
  const nlohmann::json& outer = content["message"];
  const nlohmann::json& message = outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  return message.is_string() ? message.get<std::string>() : "";
}

}  // namespace fsdp::launch
